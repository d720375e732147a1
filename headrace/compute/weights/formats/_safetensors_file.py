"""One safetensors file: a JSON header with the place of each tensor, then raw little-endian data."""

import json
import mmap
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CheckpointError
from headrace.compute.weights.tensors import Tensor

MAX_HEADER_BYTES = 100 << 20
MAX_DIMS = 8
_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16":
    2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; data is mapped, not read.

    Raises:
        CheckpointError: truncated, no valid header, or a tensor outside the file, over another, or of a
        wrong size.
    """
    size = path.stat().st_size
    if size < 8:
        raise CheckpointError(f"{path.name} is not a safetensors file: it has {size} bytes")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(mapped[:8], "little")
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise CheckpointError(f"{path.name} announces a header of {length} bytes in a file of {size}")
    header = _parse(mapped[8 : 8 + length], path.name)
    data = np.frombuffer(mapped, np.uint8)[8 + length :]
    tensors = {name: _tensor(name, entry, data, path.name) for name, entry in header.items()}
    _check_overlap(header, path.name)
    return tensors


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the header of {where} is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"the header of {where} must be a JSON object")
    header.pop("__metadata__", None)
    return header


def _tensor(name: str, entry: Any, data: NDArray[np.uint8], where: str) -> Tensor:
    kind = entry.get("dtype") if isinstance(entry, dict) else entry
    if not isinstance(kind, str) or not isinstance(entry, dict) or kind not in _SIZES:
        raise CheckpointError(f"tensor {name!r:.200} of {where} has the unknown type {kind!r:.80}")
    shape, span = _whole_numbers(entry.get("shape"), MAX_DIMS), _whole_numbers(entry.get("data_offsets"), 2)
    if shape is None or span is None or len(span) != 2:
        raise CheckpointError(f"tensor {name!r} of {where} has an impossible shape or place: {entry!r:.200}")
    begin, end = span
    if not begin <= end <= data.shape[0]:
        raise CheckpointError(
            f"tensor {name!r} lies at bytes {begin} to {end} of {where}, which holds {data.shape[0]}"
        )
    if prod(shape) * _SIZES[entry["dtype"]] != end - begin:
        raise CheckpointError(
            f"tensor {name!r} of {where} has {end - begin} bytes, which is not {shape} {entry['dtype']}"
        )
    return Tensor(name=name, type_name=entry["dtype"].lower(), shape=tuple(shape), data=data[begin:end])


def _whole_numbers(value: Any, most: int) -> list[int] | None:
    """`value` when it is a list of at most `most` possible sizes, else None."""
    if not isinstance(value, list) or len(value) > most:
        return None
    good = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= 1 << 48 for v in value)
    return value if good else None


def _check_overlap(header: dict[str, Any], where: str) -> None:
    spans = sorted((entry["data_offsets"], name) for name, entry in header.items())
    for (before, first), (after, second) in pairwise(spans):
        if after[0] < before[1]:
            raise CheckpointError(f"tensors {first!r} and {second!r} of {where} overlap")
