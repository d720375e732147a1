"""Q5_K: 256 values of five bits in 8 parts with six-bit scale and minimum each; x = d * s * q - dmin * m."""

import numpy as np

from headrace.compute.quant.fields import bits, half, low_high, scales_and_minima
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    scales, minima = scales_and_minima(groups[:, 4:16])
    scale, minimum = half(groups, 0) * scales, half(groups, 2) * minima
    q = low_high(groups[:, 48:], 32) | (bits(groups[:, 16:48]) << 4)
    values = q.reshape(-1, 8, 32).astype(np.float32)
    return (scale[:, :, None] * values - minimum[:, :, None]).reshape(-1, 256)


SCHEME = Scheme(name="q5_k", gguf_id=13, group=256, group_bytes=176, decode=_decode)
