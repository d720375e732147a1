"""A number format of weights: groups of values in a fixed number of bytes, and their meaning as float32."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CheckpointError
from headrace.base.registry import Registry

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Floats = NDArray[np.floating]
"""float32; numpy's types lose the width in arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A number format.

    Args:
        name: GGUF's name in lower case (`q4_k`).
        gguf_id: GGUF's number of the type; None when GGUF has none.
        group: values per group; a row is a whole number of groups.
        group_bytes: bytes per group.
        decode: [groups, group_bytes] uint8, contiguous -> [groups, group] float32, newly allocated.
    """

    name: str
    gguf_id: int | None
    group: int
    group_bytes: int
    decode: Callable[[U8], Floats]

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` values.

        Raises:
            CheckpointError: `k` is not a whole number of groups.
        """
        if k % self.group:
            raise CheckpointError(
                f"rows of {k} values cannot be stored as {self.name}: groups hold {self.group}"
            )
        return k // self.group * self.group_bytes

    def dequantize(self, rows: U8) -> F32:
        """The values [n, k] float32 of rows [n, row_bytes] uint8."""
        n, row_bytes = rows.shape
        groups = np.ascontiguousarray(rows).reshape(-1, self.group_bytes)
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.decode(groups).reshape(n, row_bytes // self.group_bytes * self.group)
        return values.astype(np.float32, copy=False)


SCHEMES: Registry[Scheme] = Registry("number format", "headrace.compute.quant.schemes", "SCHEME")


def find_scheme(type_name: str, tensor: str) -> Scheme:
    """The scheme of that name.

    Raises:
        CheckpointError: there is none; the message names the tensor and the known schemes.
    """
    if type_name not in SCHEMES.names():
        raise CheckpointError(
            f"tensor {tensor!r} has the number format {type_name}, which Headrace lacks; known formats: "
            f"{', '.join(SCHEMES.names())}. Use a file quantized to one of them."
        )
    return SCHEMES.get(type_name)
