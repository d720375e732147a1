"""Q4_1: 32 values of four bits with half-float scale and minimum; x = d * q + m."""

import numpy as np

from headrace.compute.quant.fields import half, low_high
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    return half(groups, 0) * low_high(groups[:, 4:], 16).astype(np.float32) + half(groups, 2)


SCHEME = Scheme(name="q4_1", gguf_id=3, group=32, group_bytes=20, decode=_decode)
