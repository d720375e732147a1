"""Packing of weights, and the packed form as bytes of a file."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.base.errors import CheckpointError, ShapeError
from headrace.compute.ops.api import Weight
from headrace.compute.ops.backends.native.pool import NativeMatrix

SOURCE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "bf16": 30,
}
"""Scheme names that can be packed, with their GGUF numbers."""

_SAMPLE_ROWS, _SAMPLE_COLUMNS = 33, 512
"""Two whole panels and one of a single row; two of the largest blocks."""


def pack(runtime: Any, weight: Weight, *, rounds: bool = False) -> Any:
    """A weight packed by all threads; `rounds` as in `source_type_of`.

    Raises:
        CheckpointError: an unknown scheme, or data of a wrong shape.
    """
    source_type = source_type_of(weight, rounds=rounds)
    if weight.data.ndim != 2 or weight.data.shape[0] != weight.n:
        raise CheckpointError(f"{weight.name}: {weight.n} rows declared, data has shape {weight.data.shape}")
    try:
        return runtime.pack(source_type, weight.data, weight.k, weight.order)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{weight.name} ({weight.type_name}): {error}") from error


def source_type_of(weight: Weight, *, rounds: bool = False) -> int:
    """The GGUF number of a weight's scheme.

    `rounds`: one of its own for bfloat16 whose activations are rounded to bfloat16.

    Raises:
        CheckpointError: unknown.
    """
    source_type = SOURCE_TYPES.get(weight.type_name)
    if source_type is None:
        raise CheckpointError(
            f"{weight.name}: the scheme {weight.type_name!r} is unknown; known: {', '.join(SOURCE_TYPES)}"
        )
    return _native.BFLOAT_PAIRS if rounds and _makes_pairs(weight.type_name, weight.k) else source_type


def _makes_pairs(type_name: str, columns: int) -> bool:
    """Whether a matrix is packed in pairs where activations are rounded: one of whole blocks is."""
    block, _ = _native.source_blocks()[_native.BFLOAT_PAIRS]
    return type_name == "bf16" and columns % block == 0


def stacked(parts: Sequence[Weight], packed: tuple[Any, ...]) -> NativeMatrix:
    """Packed parts of equal width as one matrix.

    Raises:
        ShapeError: there are none.
        CheckpointError: their widths differ.
    """
    if not packed:
        raise ShapeError("a matrix needs at least one part")
    if len({m.k for m in packed}) != 1:
        raise CheckpointError(
            "stacked weights need equal widths: " + ", ".join(f"{p.name} {p.k}" for p in parts)
        )
    return NativeMatrix("+".join(p.name for p in parts), packed, sum(m.n for m in packed), packed[0].k)


@cache
def layout_digest(*, pairs: bool = False) -> str:
    """A digest of what packing makes of given bytes in every scheme: it changes when packing does.

    `pairs`: of bfloat16 in pairs, too.
    """
    digest = hashlib.blake2b(digest_size=16)
    runtime = _native.Runtime("portable", 1, 0, False)  # so that the samples leave the memory of weights
    for source_type, (columns, size) in _native.source_blocks().items():
        if source_type == _native.BFLOAT_PAIRS and not pairs:
            continue
        row_bytes = _SAMPLE_COLUMNS // columns * size
        data = (np.arange(_SAMPLE_ROWS * row_bytes, dtype=np.uint32) * np.uint32(2654435761) >> 13).astype(
            np.uint8
        )
        matrix = runtime.pack(source_type, data.reshape(_SAMPLE_ROWS, row_bytes), _SAMPLE_COLUMNS, None)
        digest.update(f"|{source_type}|".encode())
        digest.update(matrix.data().data)
    return digest.hexdigest()


class NativePacker:
    """See `Packer`.

    The packed form is the same on every instruction set; that of bfloat16 depends on `rounds`.
    """

    chunk: int = _native.FILE_CHUNK

    def __init__(self, runtime: Any, *, rounds: bool = False) -> None:
        self._runtime = runtime
        self._rounds = rounds

    def layout_of(self, forms: Iterable[tuple[str, int]]) -> str:
        """See `Packer.layout_of`."""
        return layout_digest(pairs=self._rounds and any(_makes_pairs(*form) for form in forms))

    def checksum(self, data: NDArray[np.uint8]) -> int:
        """See `Packer.checksum`."""
        return _native.checksum(data)

    def packed(self, handle: NativeMatrix) -> Sequence[NDArray[np.uint8]]:
        """See `Packer.packed`."""
        return [part.data() for part in handle.parts]

    def load(self, fd: int, offset: int, size: int, sums: NDArray[np.uint64], mode: str) -> Any:
        """See `Packer.load`. Read and compared by all threads."""
        try:
            return self._runtime.load_file(fd, offset, size, sums, mode)
        except (RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(str(error)) from error

    def adopt(self, parts: Sequence[Weight], region: Any, offsets: Sequence[int]) -> NativeMatrix:
        """See `Packer.adopt`."""
        try:
            packed = tuple(
                self._runtime.adopt(region, offset, source_type_of(part, rounds=self._rounds), part.n, part.k)
                for part, offset in zip(parts, offsets, strict=True)
            )
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{parts[0].name}: {error}") from error
        return stacked(parts, packed)
