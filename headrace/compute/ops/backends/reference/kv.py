"""KV memory of the reference backend: keys and values [L, B, P, K, D]."""

import numpy as np

from headrace.compute.ops.api import F32, I32, KVGeometry

_DTYPES = {"f16": np.float16, "f32": np.float32}


class ReferenceKV:
    """KV memory as two arrays; see `KVPool`."""

    def __init__(self, geometry: KVGeometry, num_blocks: int) -> None:
        self.geometry = geometry
        self.num_blocks = num_blocks
        shape = (geometry.layers, num_blocks, geometry.block_size, geometry.kv_heads, geometry.head_size)
        self.keys = np.zeros(shape, _DTYPES[geometry.dtype])
        self.values = np.zeros(shape, _DTYPES[geometry.dtype])

    def copy(self, src: int, dst: int) -> None:
        """Copy block `src` to `dst` in all layers."""
        self.keys[:, dst] = self.keys[:, src]
        self.values[:, dst] = self.values[:, src]

    def read(self, layer: int, block: int) -> tuple[F32, F32]:
        """Keys and values of a block, each [P, K, D] float32 copies."""
        return self.keys[layer, block].astype(np.float32), self.values[layer, block].astype(np.float32)

    def fill(self, block: int, value: float) -> None:
        """Set a whole block in all layers."""
        self.keys[:, block] = value
        self.values[:, block] = value

    def write(self, layer: int, blocks: I32, offsets: I32, keys: F32, values: F32) -> None:
        """Store keys and values [N, K, D] at (block, offset) pairs [N]."""
        with np.errstate(over="ignore"):
            self.keys[layer, blocks, offsets] = keys
            self.values[layer, blocks, offsets] = values

    def gather(self, layer: int, table: I32, begin: int, end: int) -> tuple[F32, F32]:
        """Keys and values [end - begin, K, D] float32 of positions [begin, end) of a sequence's blocks."""
        size = self.geometry.block_size
        first, last = begin // size, (end - 1) // size + 1
        cut = slice(begin - first * size, end - first * size)
        shape = (-1, self.geometry.kv_heads, self.geometry.head_size)
        keys = self.keys[layer, table[first:last]].reshape(shape)[cut].astype(np.float32)
        values = self.values[layer, table[first:last]].reshape(shape)[cut].astype(np.float32)
        return keys, values
