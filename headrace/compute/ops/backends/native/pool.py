"""KV memory and weight handles of the native backend."""

from dataclasses import dataclass

import numpy as np

from headrace import _native
from headrace.base.errors import ShapeError
from headrace.compute.ops.api import F32, KV_BITS, KVGeometry
from headrace.compute.ops.backends.native.facts import FACTS


@dataclass(frozen=True, slots=True, eq=False)
class NativeMatrix:
    """Packed matrices stacked along their outputs."""

    name: str
    parts: tuple[_native.Matrix, ...]
    n: int
    k: int

    @property
    def reads_codes(self) -> bool:
        """Whether a part multiplies rows quantized to int8."""
        return any(not part.is_float and not part.is_pairs for part in self.parts)

    @property
    def reads_rounded(self) -> bool:
        """Whether a part multiplies rows rounded to bfloat16."""
        return any(part.is_pairs for part in self.parts)

    def holds_panels(self, column: int, width: int) -> bool:
        """Whether outputs [column, column + width) are whole panels of 16 of one part."""
        first = 0
        for part in self.parts:
            begin, end = column - first, column - first + width
            if begin >= 0 and end <= part.n and begin % 16 == 0 and (end % 16 == 0 or end == part.n):
                return True
            first += part.n
        return False


class NativeKVPool:
    """Zeroed KV memory; see `KVPool`."""

    def __init__(self, geometry: KVGeometry, num_blocks: int) -> None:
        if geometry.dtype not in KV_BITS:
            raise ShapeError(
                f"KV dtype {geometry.dtype!r} is unknown to the native backend; use {', '.join(KV_BITS)}"
            )
        shape = (geometry.layers, geometry.block_size, geometry.kv_heads, geometry.head_size, num_blocks)
        if min(shape) < 1:
            raise ShapeError(
                f"a KV pool needs layers, block size, KV heads, head size and blocks of at least 1: {shape}"
            )
        FACTS.heads.check(geometry.head_size)
        try:
            self.memory = _native.kv_memory(geometry.dtype, shape)
        except (MemoryError, ValueError) as error:
            raise ShapeError(
                f"no memory for {num_blocks} KV blocks of {geometry.block_bytes} bytes; lower num_kv_blocks"
            ) from error
        self.geometry = geometry
        self.num_blocks = num_blocks

    def copy(self, src: int, dst: int) -> None:
        """See `KVPool.copy`."""
        self.memory.copy(src, dst)

    def read(self, layer: int, block: int) -> tuple[F32, F32]:
        """See `KVPool.read`."""
        return self.memory.read(layer, block)

    def shift_keys(self, layer: int, values: F32) -> None:
        """See `KVPool.shift_keys`."""
        self.memory.shift_keys(layer, np.ascontiguousarray(values, np.float32))

    def fill(self, block: int, value: float) -> None:
        """See `KVPool.fill`."""
        self.memory.fill(block, float(np.float32(value)))
