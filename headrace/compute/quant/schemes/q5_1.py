"""Q5_1: 32 values of five bits with half-float scale and minimum; x = d * q + m."""

import numpy as np

from headrace.compute.quant.fields import half, low_high, word_bits
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    q = low_high(groups[:, 8:], 16) | (word_bits(groups[:, 4:8]) << 4)
    return half(groups, 0) * q.astype(np.float32) + half(groups, 2)


SCHEME = Scheme(name="q5_1", gguf_id=7, group=32, group_bytes=24, decode=_decode)
