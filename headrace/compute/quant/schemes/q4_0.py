"""Q4_0: 32 values of four bits with one half-float scale; x = d * (q - 8)."""

import numpy as np

from headrace.compute.quant.fields import half, low_high
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    return half(groups, 0) * (low_high(groups[:, 2:], 16).astype(np.float32) - np.float32(8))


SCHEME = Scheme(name="q4_0", gguf_id=2, group=32, group_bytes=18, decode=_decode)
