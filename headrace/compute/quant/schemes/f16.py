"""F16: IEEE half floats."""

import numpy as np

from headrace.compute.quant.scheme import F32, U8, Scheme


def _decode(groups: U8) -> F32:
    return groups.view(np.float16).astype(np.float32)


SCHEME = Scheme(name="f16", gguf_id=1, group=1, group_bytes=2, decode=_decode)
