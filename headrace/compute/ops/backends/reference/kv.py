"""KV memory of the reference backend: keys and values [L, B, P, K, D]."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.compute.ops.api import F32, I32, SHIFT_SPAN, KVGeometry

_DTYPES = {"f16": np.float16, "f32": np.float32}
_TINY = np.float32(2.0**-100)


class ReferenceKV:
    """KV memory as two arrays; see `KVPool`."""

    def __init__(self, geometry: KVGeometry, num_blocks: int) -> None:
        self.geometry = geometry
        self.num_blocks = num_blocks
        self._shifts: dict[int, F32] = {}
        shape = (geometry.layers, num_blocks, geometry.block_size, geometry.kv_heads, geometry.head_size)
        if geometry.dtype == "int8":
            self._keys = _Codes(shape, np.int8, _byte_steps, rotation_run(geometry.head_size))
            self._values = _Codes(shape, np.int8, _byte_steps)
        elif geometry.dtype == "int16":
            self._keys, self._values = (
                _Codes(shape, np.int16, _norm_steps),
                _Codes(shape, np.int16, _value_steps),
            )
        else:
            dtype = _DTYPES[geometry.dtype]
            self._keys, self._values = _Floats(shape, dtype), _Floats(shape, dtype)

    def copy(self, src: int, dst: int) -> None:
        """Copy block `src` to `dst` in all layers."""
        for store in (self._keys, self._values):
            for array in store.arrays:
                array[:, dst] = array[:, src]

    def read(self, layer: int, block: int) -> tuple[F32, F32]:
        """Keys and values of a block, each [P, K, D] float32 copies."""
        return self._keys.get((layer, block)), self._values.get((layer, block))

    def fill(self, block: int, value: float) -> None:
        """Set a whole block in all layers."""
        shape = (
            self.geometry.layers,
            self.geometry.block_size,
            self.geometry.kv_heads,
            self.geometry.head_size,
        )
        values = np.full(shape, value, np.float32)
        self._keys.put((slice(None), block), values)
        self._values.put((slice(None), block), values)

    def shift_keys(self, layer: int, values: F32) -> None:
        """See `KVPool.shift_keys`."""
        self._shifts[layer] = values

    def _shift(self, layer: int, positions: I32) -> F32:
        """What keys at `positions` [N] are stored less of [N, K, D]; zero [1] if nothing."""
        shifts = self._shifts.get(layer)
        return (
            np.zeros(1, np.float32)
            if shifts is None
            else shifts[np.minimum(positions // SHIFT_SPAN, len(shifts) - 1)]
        )

    def write(self, layer: int, blocks: I32, positions: I32, keys: F32, values: F32) -> None:
        """Store keys and values [N, K, D] of positions [N] in their blocks [N]."""
        offsets = positions % self.geometry.block_size
        keys = keys - self._shift(layer, positions)
        self._keys.put((layer, blocks, offsets), keys)
        self._values.put((layer, blocks, offsets), values)

    def gather(self, layer: int, table: I32, begin: int, end: int) -> tuple[F32, F32]:
        """Keys and values [end - begin, K, D] float32 of positions [begin, end) of a sequence's blocks."""
        size = self.geometry.block_size
        first, last = begin // size, (end - 1) // size + 1
        cut = slice(begin - first * size, end - first * size)
        index = (layer, table[first:last])
        keys, values = self._keys.get(index, cut), self._values.get(index, cut)
        return keys + self._shift(layer, np.arange(begin, end, dtype=np.int32)), values


def rotation_run(head_size: int) -> int:
    """Dims that an int8 key is rotated over: the largest power of two that divides the head size."""
    return head_size & -head_size


def rotate(x: F32, run: int) -> F32:
    """H x on runs of `run` last dims: H is the Hadamard matrix with entries +-1, so H H = run.

    Sums are in the order of the native kernels (`rotate` of attention_load.h): the same bits.
    """
    for step in (1 << bit for bit in range(run.bit_length() - 1)):
        pairs = x.reshape(*x.shape[:-1], -1, 2, step)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([first + second, first - second], axis=-2).reshape(x.shape)
    return x


def encode(x: F32, steps: Callable[[F32, F32], F32]) -> tuple[F32, F32]:
    """Codes of x [..., D] and their scales [..., 1], which hold bfloat16 values.

    `steps` gives the unrounded scales of x and its largest magnitudes. A head with a value that is not finite
    has scale NaN and codes 0; one that is below 2^-100 is zero. The rules are written in
    native/include/headrace/kernels.h (`KVLayer`).
    """
    top = np.abs(x).max(axis=-1, keepdims=True)
    finite, used = np.isfinite(top), top >= _TINY
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        up = steps(x, top).view(np.uint32) + np.uint32(0xFFFF)
    scales = np.where(finite & used, (up & np.uint32(0xFFFF0000)).view(np.float32), np.float32(0))
    factors = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.rint(np.where(scales > 0, x, np.float32(0)) * factors)
    return codes, np.where(finite, scales, np.float32(np.nan))


def encode_query(x: F32) -> tuple[F32, F32]:
    """Codes of queries [..., D] and their scales [..., 1], as those of int16 keys."""
    return encode(x, _norm_steps)


def _byte_steps(_: F32, top: F32) -> F32:
    return top / np.float32(127)


def _value_steps(_: F32, top: F32) -> F32:
    return top * np.float32(1 / np.float32(16383))


def _norm_steps(x: F32, top: F32) -> F32:
    """Bounds the Euclidean norm of the codes, summed in eight lanes as the native kernels do."""
    y = x / top
    missing = np.zeros((*x.shape[:-1], -x.shape[-1] % 8), np.float32)
    y = np.concatenate([y, missing], axis=-1).reshape(*x.shape[:-1], -1, 8)
    lanes = np.zeros((*x.shape[:-1], 8), np.float32)
    for i in range(y.shape[-2]):
        lanes = lanes + y[..., i, :] * y[..., i, :]
    halves = lanes[..., :4] + lanes[..., 4:]
    pairs = halves[..., :2] + halves[..., 2:]
    norm = np.sqrt(pairs[..., :1] + pairs[..., 1:])
    return top * np.maximum(norm * np.float32(1 / np.float32(46300)), np.float32(1 / np.float32(32766)))


def _tokens(blocks: NDArray[Any], cut: slice | None) -> NDArray[Any]:
    """Those tokens of blocks [B, S, K, D] that are in `cut`, [N, K, D]; the blocks as they are for None."""
    return blocks if cut is None else blocks.reshape(-1, *blocks.shape[2:])[cut]


class _Floats:
    """Values as they are, rounded to a float type."""

    def __init__(self, shape: tuple[int, ...], dtype: type) -> None:
        self._array = np.zeros(shape, dtype)
        self.arrays: list[NDArray[Any]] = [self._array]

    def get(self, index: tuple, cut: slice | None = None) -> F32:
        """Copies of the values at `index`, float32; of several blocks the tokens in `cut`."""
        return _tokens(self._array[index], cut).astype(np.float32)

    def put(self, index: tuple, values: F32) -> None:
        """Store float32 values at `index`."""
        with np.errstate(over="ignore"):
            self._array[index] = values


class _Codes:
    """Values as codes times one scale per token and KV head, after a rotation over runs of `run` dims."""

    def __init__(
        self, shape: tuple[int, ...], dtype: type, steps: Callable[[F32, F32], F32], run: int = 1
    ) -> None:
        self._run, self._steps = run, steps
        self._codes = np.zeros(shape, dtype)
        self._scales = np.zeros((*shape[:-1], 1), np.float32)
        self.arrays: list[NDArray[Any]] = [self._codes, self._scales]

    def get(self, index: tuple, cut: slice | None = None) -> F32:
        """The values at `index` as codes give them back, float32; of several blocks the tokens in `cut`."""
        stored = _tokens(self._codes[index], cut) * _tokens(self._scales[index], cut)
        return rotate(stored, self._run) * np.float32(1 / self._run)

    def put(self, index: tuple, values: F32) -> None:
        """Store float32 values at `index`."""
        with np.errstate(invalid="ignore", over="ignore"):
            rotated = rotate(values, self._run)
        codes, self._scales[index] = encode(rotated, self._steps)
        self._codes[index] = codes.astype(self._codes.dtype)
