"""The header of a GGUF file (versions 2 and 3): metadata and tensor table; every number is checked."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import CheckpointError
from headrace.base.specs import TextArray
from headrace.compute.ops.bind import native_module

MAGIC = b"GGUF"
MAX_NAME_BYTES = 65_535
MAX_DIMS = 4
MAX_PAIRS, MAX_TENSORS = 1 << 16, 1 << 20
MAX_ELEMENTS = 1 << 24
"""Values of all arrays together: in memory a byte of the file becomes up to sixteen."""
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
MIN_PAIR_BYTES = 13
"""Length of a key, its type, and a one-byte value: the least a metadata entry takes."""
MIN_TENSOR_BYTES = 32
"""Name length, number of dimensions, one dimension, type, offset: the least a tensor entry takes."""

MANY_TEXTS = 1024
"""From here on an array of strings is a `TextArray`, below a list."""
_WINDOW_BYTES = 1 << 20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

TYPE_NAMES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10:
    "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs",
    18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25:
    "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39:
    "mxfp4", 40: "nvfp4",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """An entry of the tensor table: shape outermost first; offset from the start of the data section."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A parsed header; `data_start` is the file offset of the data section."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int


class _Cursor:
    """Reads forward through the file's bytes; every read is checked against the end."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.at = 0
        self.elements_left = MAX_ELEMENTS

    def take(self, size: int, what: str) -> int:
        """The offset of the next `size` bytes, which are then passed."""
        start = self.at
        if size > self.size - start:
            raise CheckpointError(
                f"the GGUF file ends inside {what}: {size} bytes needed at offset {start} of {self.size}"
            )
        self.at = start + size
        return start

    def u32(self, what: str) -> int:
        return _U32.unpack_from(self.buffer, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64.unpack_from(self.buffer, self.take(8, what))[0]

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.u64(what)
        if limit is not None and length > limit:
            raise CheckpointError(f"{what} is {length} bytes long; the limit is {limit}")
        start = self.take(length, what)
        return _decode(bytes(self.buffer[start : self.at]), what)

    def texts(self, count: int, what: str) -> Sequence[str]:
        """`count` strings: vocabularies hold hundreds of thousands, so by native code where it is built."""
        native: Any = native_module()[0] if count >= MANY_TEXTS else None
        quick = None if native is None else native.texts(self.buffer, self.at, count)
        if quick is not None:
            blob, ends, has_empty, self.at = quick
            return TextArray(blob, ends, has_empty=has_empty)
        return self._texts_in_windows(count, what)

    def _texts_in_windows(self, count: int, what: str) -> list[str]:
        """`texts` in Python, from copied windows; says what is wrong."""
        found: list[bytes] = []
        while len(found) < count:
            before = self.at
            self._window_of_texts(found, count)
            if self.at == before:
                raise CheckpointError(
                    f"the GGUF file ends inside {what}: {count} strings announced, {len(found)} there"
                )
        try:
            return [raw.decode() for raw in found]
        except UnicodeDecodeError:
            return [_decode(raw, what) for raw in found]

    def _window_of_texts(self, found: list[bytes], count: int) -> None:
        """Pass the strings that lie within the next bytes; at least one unless the file ends first."""
        if self.size - self.at < 8:
            return
        first = 8 + _U64.unpack_from(self.buffer, self.at)[0]
        if first > self.size - self.at:
            return
        window = bytes(self.buffer[self.at : self.at + max(first, _WINDOW_BYTES)])
        unpack, end, at = _U64.unpack_from, len(window), 0
        add: Callable[[bytes], None] = found.append
        for _ in range(count - len(found)):
            if at + 8 > end:
                break
            following = at + 8 + unpack(window, at)[0]
            if following > end:
                break
            add(window[at + 8 : following])
            at = following
        self.at += at


def _decode(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{what} is not valid UTF-8: {error}") from error


def parse_header(buffer: memoryview) -> Header:
    """Parse the header at the start of `buffer`, a whole file's bytes.

    Work and memory are bounded by the file's size and by `MAX_ELEMENTS`. Data of tensors is not looked at.

    Raises:
        CheckpointError: not GGUF, version 1, big-endian, truncated, or any number that cannot be true.
    """
    cursor = _Cursor(buffer)
    version = _version(cursor)
    num_tensors, num_pairs = cursor.u64("the tensor count"), cursor.u64("the metadata count")
    _bounded(num_pairs, MIN_PAIR_BYTES, cursor, "metadata entries")
    _bounded(num_tensors, MIN_TENSOR_BYTES, cursor, "tensors")
    if num_pairs > MAX_PAIRS or num_tensors > MAX_TENSORS:
        raise CheckpointError(
            f"the GGUF file has {num_pairs} metadata entries and {num_tensors} tensors; "
            f"the limits are {MAX_PAIRS} and {MAX_TENSORS}"
        )
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.text("a metadata key", MAX_NAME_BYTES)
        if key in metadata:
            raise CheckpointError(f"the GGUF metadata key {key!r} occurs twice")
        metadata[key] = _value(cursor, key)
    tensors = tuple(_tensor(cursor) for _ in range(num_tensors))
    names = {t.name for t in tensors}
    if len(names) != len(tensors):
        raise CheckpointError("two tensors of the GGUF file have the same name")
    alignment = _alignment(metadata)
    return Header(
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_start=-(-cursor.at // alignment) * alignment,
    )


def _version(cursor: _Cursor) -> int:
    start = cursor.take(4, "the magic number")
    if bytes(cursor.buffer[start : start + 4]) != MAGIC:
        raise CheckpointError("not a GGUF file: it does not begin with the bytes GGUF")
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise CheckpointError(
            "the GGUF file is big-endian, which is not supported; convert it to little-endian"
        )
    raise CheckpointError(
        f"GGUF version {version} is not supported; versions 2 and 3 are. Convert the file again."
    )


def _bounded(count: int, least_bytes: int, cursor: _Cursor, what: str) -> None:
    if count * least_bytes > cursor.size - cursor.at:
        raise CheckpointError(
            f"the GGUF header announces {count} {what}, more than a file of {cursor.size} bytes holds"
        )


def _value(cursor: _Cursor, key: str) -> Any:
    kind = cursor.u32(f"the type of {key!r}")
    if kind == _STRING:
        return cursor.text(f"the value of {key!r}")
    if kind == _ARRAY:
        return _array(cursor, key)
    return _scalars(cursor, kind, 1, key)[0]


def _array(cursor: _Cursor, key: str) -> Sequence[Any]:
    what = f"the array {key!r}"
    kind, count = cursor.u32(what), cursor.u64(what)
    if count <= cursor.size:  # else it is refused below, where the bytes are missed
        cursor.elements_left -= count
    if cursor.elements_left < 0:
        raise CheckpointError(
            f"the GGUF metadata holds more than {MAX_ELEMENTS} values in arrays; {key!r} is one too many"
        )
    if kind == _STRING:
        _bounded(count, 8, cursor, f"strings in {key!r}")
        return cursor.texts(count, what)
    if kind == _ARRAY:
        raise CheckpointError(
            f"the GGUF metadata key {key!r} holds an array of arrays, which is not supported"
        )
    return list(_scalars(cursor, kind, count, key))


def _scalars(cursor: _Cursor, kind: int, count: int, key: str) -> tuple[Any, ...]:
    code = _SCALARS.get(kind)
    if code is None:
        raise CheckpointError(f"the GGUF metadata key {key!r} has the unknown value type {kind}")
    size = struct.calcsize(code)
    start = cursor.take(count * size, f"the value of {key!r}")
    return struct.unpack_from(f"<{count}{code}", cursor.buffer, start)


def _tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.text("a tensor name", MAX_NAME_BYTES)
    what = f"the entry of tensor {name!r}"
    num_dims = cursor.u32(what)
    if not 1 <= num_dims <= MAX_DIMS:
        raise CheckpointError(f"tensor {name!r} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
    dims = tuple(cursor.u64(what) for _ in range(num_dims))
    if 0 in dims or max(dims) > 1 << 40:
        raise CheckpointError(f"tensor {name!r} has the impossible shape {list(dims[::-1])}")
    kind, offset = cursor.u32(what), cursor.u64(what)
    # GGUF lists the contiguous dimension first; a [n, 1] tail is a vector.
    while len(dims) > 1 and dims[-1] == 1:
        dims = dims[:-1]
    return TensorInfo(
        name=name, type_name=TYPE_NAMES.get(kind, f"type {kind}"), shape=dims[::-1], offset=offset
    )


def _alignment(metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise CheckpointError(
            f"general.alignment is {value!r}; it must be a power of two, at most {MAX_ALIGNMENT}"
        )
    return value
