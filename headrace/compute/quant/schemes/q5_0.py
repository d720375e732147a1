"""Q5_0: 32 values of five bits (the fifth in a word apart) with one half-float scale; x = d * (q - 16)."""

import numpy as np

from headrace.compute.quant.fields import half, low_high, word_bits
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    q = low_high(groups[:, 6:], 16) | (word_bits(groups[:, 2:6]) << 4)
    return half(groups, 0) * (q.astype(np.float32) - np.float32(16))


SCHEME = Scheme(name="q5_0", gguf_id=6, group=32, group_bytes=22, decode=_decode)
