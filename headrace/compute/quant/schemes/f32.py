"""F32: plain 32-bit floats."""

import numpy as np

from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    return groups.view(np.float32).copy()


SCHEME = Scheme(name="f32", gguf_id=0, group=1, group_bytes=4, decode=_decode)
