"""Q3_K: 256 values of three bits in 16 parts, each with a six-bit scale; x = d * (s - 32) * (q - 4).

The third bits lie in a mask of 32 bytes. The scales' lower four bits fill eight bytes, their upper two bits
four more.
"""

import numpy as np

from headrace.compute.quant.fields import bits, half, low_high, pairs
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    six_bits = low_high(groups[:, 96:104], 8) | (pairs(groups[:, 104:108], 4) << 4)
    scale = half(groups, 108) * (six_bits.astype(np.float32) - np.float32(32))
    q = pairs(groups[:, 32:96], 32) | (bits(groups[:, :32]) << 2)
    centred = (q.astype(np.float32) - np.float32(4)).reshape(-1, 16, 16)
    return (scale[:, :, None] * centred).reshape(-1, 256)


SCHEME = Scheme(name="q3_k", gguf_id=11, group=256, group_bytes=110, decode=_decode)
