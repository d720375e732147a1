"""Q2_K: 256 values of two bits in 16 parts with four-bit scale and minimum each; x = d * s * q - dmin * m."""

import numpy as np

from headrace.compute.quant.fields import half, pairs
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    parts = groups[:, :16]
    scale = half(groups, 80) * (parts & 15).astype(np.float32)
    minimum = half(groups, 82) * (parts >> 4).astype(np.float32)
    q = pairs(groups[:, 16:80], 32).reshape(-1, 16, 16).astype(np.float32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(-1, 256)


SCHEME = Scheme(name="q2_k", gguf_id=10, group=256, group_bytes=84, decode=_decode)
