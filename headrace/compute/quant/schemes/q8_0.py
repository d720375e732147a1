"""Q8_0: 32 values as int8 with one half-float scale; x = d * q."""

import numpy as np

from headrace.compute.quant.fields import half
from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    return half(groups, 0) * groups[:, 2:].view(np.int8).astype(np.float32)


SCHEME = Scheme(name="q8_0", gguf_id=8, group=32, group_bytes=34, decode=_decode)
