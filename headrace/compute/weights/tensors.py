"""Stored tensors, and the rules that cut a model's canonical weights out of them."""

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CheckpointError
from headrace.compute.ops.api import F32, I32, Weight
from headrace.compute.quant.scheme import find_scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as a container stores it: `shape` outermost first, `data` its raw bytes (mapped).

    `data` is [nbytes] uint8; it is checked against shape and format when the tensor is used.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def rows(self) -> NDArray[np.uint8]:
        """The bytes as [rows, row_bytes]; a vector is one row.

        Raises:
            CheckpointError: the number format is unknown, or the size does not fit the shape.
        """
        scheme = find_scheme(self.type_name, self.name)
        n, k = (1, self.shape[0]) if len(self.shape) == 1 else self.shape
        row_bytes = scheme.row_bytes(k)
        if n * row_bytes != self.data.shape[0]:
            raise CheckpointError(
                f"tensor {self.name!r} holds {self.data.shape[0]} bytes; "
                f"shape {list(self.shape)} in {self.type_name} needs {n * row_bytes}"
            )
        return self.data.reshape(n, row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a canonical weight lies: rows [first, first + n) of a stored tensor.

    `shape` is the canonical shape, [n, k] or [n]. `stored_rows` is the stored tensor's number of rows (for a
    bias: its length). `order` undoes a row permutation. `offset` is added to vectors (norm weights stored as
    w - 1).
    """

    tensor: str
    shape: tuple[int, ...]
    first: int = 0
    stored_rows: int = 0
    order: I32 | None = None
    offset: float = 0.0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape the stored tensor must have."""
        return (self.stored_rows or self.shape[0], *self.shape[1:])


class WeightMap:
    """A model's weights by canonical name, cut out of stored tensors.

    Args:
        tensors: the container's tensors by stored name.
        sources: canonical name -> where it lies.
        ignored: stored names that may be left unused (buffers that older exporters wrote).

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is in the file but known to no rule.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], sources: Mapping[str, Source], ignored: Iterable[str] = ()
    ) -> None:
        self._tensors = tensors
        self._sources = sources
        files = (_file_of(tensor.data) for tensor in tensors.values())
        self._files = tuple({id(file): file for file in files if file is not None}.values())
        for name, source in sources.items():
            _check_shape(tensors, name, source)
        known = {s.tensor for s in sources.values()} | set(ignored)
        unknown = sorted(set(tensors) - known)
        if unknown:
            raise CheckpointError(
                f"the checkpoint holds {len(unknown)} tensors that this model family does not use, first "
                f"{unknown[0]!r}: it asks for something Headrace lacks"
            )

    def names(self) -> tuple[str, ...]:
        """Canonical names, in the order of the rules."""
        return tuple(self._sources)

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this weight."""
        return name in self._sources

    def forms(self) -> frozenset[tuple[str, int]]:
        """(number format, columns) of all matrices; no weight is read."""
        matrices = (source for source in self._sources.values() if len(source.shape) == 2)
        return frozenset((self._tensors[source.tensor].type_name, source.shape[1]) for source in matrices)

    def matrix(self, name: str) -> Weight:
        """A weight matrix [n, k] in its stored form.

        Raises:
            CheckpointError: its number format is one Headrace lacks.
        """
        source = self._sources[name]
        rows = self._tensors[source.tensor].rows()
        n, k = source.shape
        return Weight(
            name=name,
            type_name=self._tensors[source.tensor].type_name,
            n=n,
            k=k,
            data=rows[source.first : source.first + n],
            order=source.order,
        )

    def vector(self, name: str) -> F32:
        """A vector [n] as float32, newly allocated, its offset folded in."""
        source = self._sources[name]
        tensor = self._tensors[source.tensor]
        values = find_scheme(tensor.type_name, tensor.name).dequantize(tensor.rows()).reshape(-1)
        values = values[source.first : source.first + source.shape[0]]
        if source.order is not None:
            values = values[source.order]
        return np.ascontiguousarray(values + np.float32(source.offset))

    def stored_bytes(self, prefix: str) -> int:
        """Bytes of the weights whose canonical names begin so; no weight is read."""
        total = 0
        for name, source in self._sources.items():
            if name.startswith(prefix):
                data = self._tensors[source.tensor].data
                total += data.nbytes * source.shape[0] // source.stored_shape[0]
        return total

    def hollow(self, names: Iterable[str]) -> "WeightMap":
        """These weights in their shapes and number formats, all bytes zero; no weight is read."""
        sources = {name: self._sources[name] for name in names}
        stored = {source.tensor: self._tensors[source.tensor] for source in sources.values()}
        zeros = {
            name: replace(tensor, data=np.zeros(tensor.data.nbytes, np.uint8))
            for name, tensor in stored.items()
        }
        return WeightMap(zeros, sources)

    def release(self) -> None:
        """Give back the memory that reading took; what is used again is read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for file in self._files:
                file.madvise(mmap.MADV_DONTNEED)


def _file_of(data: NDArray[np.uint8]) -> mmap.mmap | None:
    """The mapped file that an array looks into."""
    owner: Any = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return owner if isinstance(owner, mmap.mmap) else None


def _check_shape(tensors: Mapping[str, Tensor], name: str, source: Source) -> None:
    tensor = tensors.get(source.tensor)
    if tensor is None:
        raise CheckpointError(f"the checkpoint lacks the tensor {source.tensor!r} (weight {name})")
    if tensor.shape != source.stored_shape:
        raise CheckpointError(
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}; the configuration asks for "
            f"{list(source.stored_shape)}"
        )


def interleaved_order(heads: int, head_size: int) -> I32:
    """Rows of Q or K of a llama GGUF file in the order of the original checkpoint.

    The file holds pairs of a head next to each other (2j, 2j + 1); the decoder wants them half a head apart
    (j, j + half).
    """
    one = np.arange(head_size, dtype=np.int32).reshape(head_size // 2, 2).T.reshape(-1)
    heads_first = np.arange(heads, dtype=np.int32)[:, None] * head_size
    return np.ascontiguousarray((heads_first + one).reshape(-1), dtype=np.int32)
