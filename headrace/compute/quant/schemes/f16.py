"""F16: IEEE half floats."""

import numpy as np

from headrace.compute.quant.scheme import U8, Floats, Scheme


def _decode(groups: U8) -> Floats:
    return groups.view(np.float16).astype(np.float32)


SCHEME = Scheme(name="f16", gguf_id=1, group=1, group_bytes=2, decode=_decode)
