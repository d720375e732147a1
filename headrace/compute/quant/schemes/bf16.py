"""BF16: the upper half of a 32-bit float."""

import numpy as np

from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    return (groups.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


SCHEME = Scheme(name="bf16", gguf_id=30, group=1, group_bytes=2, decode=_decode)
