"""Q6_K: 256 values of six bits in 16 parts, each with an int8 scale; x = d * s * (q - 32)."""

import numpy as np

from headrace.compute.quant.fields import half, low_high, pairs
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    scale = half(groups, 208) * groups[:, 192:208].view(np.int8).astype(np.float32)
    q = low_high(groups[:, :128], 64) | (pairs(groups[:, 128:192], 32) << 4)
    centred = (q.astype(np.float32) - np.float32(32)).reshape(-1, 16, 16)
    return (scale[:, :, None] * centred).reshape(-1, 256)


SCHEME = Scheme(name="q6_k", gguf_id=14, group=256, group_bytes=210, decode=_decode)
