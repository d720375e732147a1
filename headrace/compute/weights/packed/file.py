"""One file of packed weights.

    magic 8 | version u32 | header bytes u32 | BLAKE2b-128 of the header | header (JSON) | zeros | data

The header names what the weights were made from (`identity`), how they are laid out (`layout`), one entry per
matrix in the order of use, and a sum per chunk of the data, which begins at a multiple of DATA_UNIT. Integers
are little-endian. Numbers of the header are believed only after they were checked against each other and
against the size of the file.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CheckpointError
from headrace.compute.ops.api import Weight

MAGIC = b"HRPACKED"
VERSION = 1
DATA_UNIT = 2 << 20
"""The data begins at a multiple of a huge page."""
ALIGN = 64
MAX_HEADER_BYTES = 64 << 20
_FRONT = struct.Struct("<8sII16s")

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A packed matrix: what it was made from, and `bytes` bytes at `offset` of the data.

    `order` is a digest of the row order ("" for none).
    """

    name: str
    type_name: str
    n: int
    k: int
    order: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A checked header. `source` is the path of the model file; `sums` holds one value per `chunk` bytes."""

    identity: str
    layout: str
    source: str
    entries: Mapping[str, Entry]
    data_start: int
    data_bytes: int
    chunk: int
    sums: NDArray[np.uint64]


def order_digest(weight: Weight) -> str:
    """Names the row order of a weight."""
    return "" if weight.order is None else hashlib.blake2b(weight.order.tobytes(), digest_size=8).hexdigest()


def read_table(fd: int) -> Table:
    """Read and check the header of an open file; the data is not looked at.

    Raises:
        CheckpointError: not such a file, another version, truncated, or any number that cannot be true.
        OSError: it cannot be read.
    """
    size = os.fstat(fd).st_size
    front = os.pread(fd, _FRONT.size, 0)
    if len(front) < _FRONT.size:
        raise CheckpointError(f"it has {size} bytes, less than a header")
    magic, version, header_bytes, digest = _FRONT.unpack(front)
    if magic != MAGIC:
        raise CheckpointError("it is no file of packed weights")
    if version != VERSION:
        raise CheckpointError(f"it has format version {version}, wanted {VERSION}")
    if header_bytes > min(MAX_HEADER_BYTES, size - _FRONT.size):
        raise CheckpointError(f"its header of {header_bytes} bytes does not fit a file of {size} bytes")
    header = os.pread(fd, header_bytes, _FRONT.size)
    if hashlib.blake2b(header, digest_size=16).digest() != digest:
        raise CheckpointError("its header differs from the digest")
    try:
        table = _table(json.loads(header), _data_start(header_bytes))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise CheckpointError(f"its header is broken: {error}") from error
    _check(table, size)
    return table


def _table(header: dict[str, Any], data_start: int) -> Table:
    entries = [Entry(**cast("dict[str, Any]", e)) for e in header["entries"]]
    return Table(
        identity=header["identity"],
        layout=header["layout"],
        source=header["source"],
        entries={e.name: e for e in entries},
        data_start=data_start,
        data_bytes=header["data_bytes"],
        chunk=header["chunk"],
        sums=np.array([int(s, 16) for s in header["sums"]], np.uint64),
    )


def _check(table: Table, size: int) -> None:
    numbers = [table.data_bytes, table.chunk]
    numbers += [x for e in table.entries.values() for x in (e.n, e.k, e.offset, e.bytes)]
    if (
        not all(type(x) is int and 0 <= x < 1 << 62 for x in numbers)
        or not table.data_bytes
        or not table.chunk
    ):
        raise CheckpointError("its header holds impossible numbers")
    if table.data_start + table.data_bytes != size:
        raise CheckpointError(f"it has {size} bytes instead of {table.data_start + table.data_bytes}")
    if len(table.sums) != -(-table.data_bytes // table.chunk):
        raise CheckpointError(f"it holds {len(table.sums)} sums for {table.data_bytes} bytes")
    for e in table.entries.values():
        if e.offset % ALIGN or e.offset + e.bytes > table.data_bytes:
            raise CheckpointError(f"{e.name} lies at {e.offset} with {e.bytes} bytes: outside, or unaligned")


def _data_start(header_bytes: int) -> int:
    return -(-(_FRONT.size + header_bytes) // DATA_UNIT) * DATA_UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a file shall hold; `chunk` and `checksum` are the backend's (`Packer`)."""

    identity: str
    layout: str
    source: str
    matrices: Sequence[tuple[Weight, Bytes]]
    """In order of use; bytes [bytes] uint8, which stay as they are until the file is written."""
    chunk: int
    checksum: Callable[[Bytes], int]

    @property
    def data_bytes(self) -> int:
        """Bytes of the data."""
        return sum(_padded(data.nbytes) for _, data in self.matrices)


def write_file(fd: int, draft: Draft) -> None:
    """Write a file and bring it to the disk. Memory: one chunk.

    The data comes first, as its sums belong into the header; until the header is there the file is no file of
    packed weights.

    Raises:
        OSError: the disk is full, or anything else.
    """
    count = -(-draft.data_bytes // draft.chunk)
    start = _data_start(len(_header(draft, ["0" * 16] * count)))
    sums: list[str] = []
    at = start
    for chunk in _chunks((data for _, data in draft.matrices), draft.chunk):
        sums.append(f"{draft.checksum(chunk):016x}")
        _write_whole(fd, chunk.data, at)
        at += chunk.nbytes
    header = _header(draft, sums)
    digest = hashlib.blake2b(header, digest_size=16).digest()
    os.ftruncate(fd, at)
    os.fsync(fd)  # the header vouches for the data
    _write_whole(fd, memoryview(_FRONT.pack(MAGIC, VERSION, len(header), digest) + header), 0)
    os.fsync(fd)


def _header(draft: Draft, sums: list[str]) -> bytes:
    entries: list[dict[str, Any]] = []
    offset = 0
    for weight, data in draft.matrices:
        entry = Entry(
            name=weight.name,
            type_name=weight.type_name,
            n=weight.n,
            k=weight.k,
            order=order_digest(weight),
            offset=offset,
            bytes=data.nbytes,
        )
        entries.append(asdict(entry))
        offset += _padded(data.nbytes)
    about = {"identity": draft.identity, "layout": draft.layout, "source": draft.source}
    return json.dumps(
        {**about, "chunk": draft.chunk, "data_bytes": offset, "sums": sums, "entries": entries}
    ).encode()


def _padded(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


def _chunks(parts: Iterable[Bytes], size: int) -> Iterator[Bytes]:
    """The padded parts one after the other, cut into pieces of `size`; the last may be shorter."""
    chunk = np.zeros(size, np.uint8)
    filled = 0
    for part in parts:
        at, end = 0, _padded(part.nbytes)
        while at < end:
            count = min(end - at, size - filled)
            held = part[at : at + count]
            chunk[filled : filled + len(held)] = held
            chunk[filled + len(held) : filled + count] = 0
            at, filled = at + count, filled + count
            if filled == size:
                yield chunk
                filled = 0
    if filled:
        yield chunk[:filled]


def _write_whole(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
