"""The folder of packed weights: one file per model, content and layout; old ones go.

Writing never fails a start: what goes wrong is logged. A file gets its name only when it is whole and on the
disk, and it is never changed after that, so processes that use it keep what they have when it is replaced or
removed.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import CheckpointError
from headrace.compute.weights.packed.file import DATA_UNIT, Draft, Table, read_table, write_file

PACKED_SUFFIX = ".packed"
PART_SUFFIX = ".part"
"""Of a file that is being written, or whose writer was stopped."""
SPARE_BYTES = 256 << 20
"""What a new file leaves free on its disk."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCache:
    """The folder, how its files come into memory (see `Packer.load`), and what it may hold in all."""

    mode: str
    limit_bytes: int
    folder: Path

    def path(self, model: Path, identity: str, layout: str) -> Path:
        """Where the packed weights of a model lie, or will lie."""
        key = hashlib.blake2b(f"{identity}|{layout}".encode(), digest_size=8).hexdigest()
        return self.folder / f"{_stem(model)}-{key}{PACKED_SUFFIX}"

    def open(self, path: Path, identity: str, layout: str) -> "OpenPacked | None":
        """The file at `path`, when it is there and holds those weights."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("packed weights are not used: %s", error)
            return None
        try:
            table = read_table(fd)
            if (table.identity, table.layout) != (identity, layout):
                raise CheckpointError("it belongs to another model or another layout")
        except (CheckpointError, OSError) as error:
            os.close(fd)
            ignored(path, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used go first
        return OpenPacked(path=path, fd=fd, table=table)

    def write(self, path: Path, draft: Draft) -> None:
        """Put a file in place; logs what hinders it."""
        try:
            self._write(path, draft)
        except OSError as error:
            _log.warning("the packed weights of %s were not kept in %s: %s", draft.source, self.folder, error)

    def _write(self, path: Path, draft: Draft) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(PART_SUFFIX)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process is writing it
            if not _is_at(fd, part):
                return  # another process finished meanwhile: `fd` is the published file, which never changes
            if not self._make_room(path, draft):
                part.unlink(missing_ok=True)
                return
            try:
                os.ftruncate(fd, 0)
                write_file(fd, draft)
                part.rename(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            _sync_folder(self.folder)
        finally:
            os.close(fd)

    def _make_room(self, path: Path, draft: Draft) -> bool:
        """Remove files of the same model, then the least recently used, until there is room for `draft`."""
        need = draft.data_bytes + DATA_UNIT
        own = {path, path.with_suffix(PART_SUFFIX)}
        others = [f for f in packed_files(self.folder) if f.path not in own]
        if need > self.limit_bytes:
            _log.warning(
                "the packed weights of %s have %d bytes; device.weight_cache_bytes allows %d",
                draft.source,
                need,
                self.limit_bytes,
            )
            return False
        others = [f for f in others if f.is_whole or not _remove(f)]
        left = sum(f.bytes for f in others)
        for old in sorted((f for f in others if f.is_whole), key=lambda f: f.used_s):
            if (old.source == draft.source or left + need > self.limit_bytes) and _remove(old):
                left -= old.bytes
        free = shutil.disk_usage(self.folder).free
        if free < need + SPARE_BYTES:
            _log.warning(
                "the packed weights of %s are not kept: they need %d bytes, %s has %d free and %d stay free",
                draft.source,
                need,
                self.folder,
                free,
                SPARE_BYTES,
            )
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPacked:
    """An open file with a checked header; the user closes `fd`."""

    path: Path
    fd: int
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """A file of the folder. `source` is the model file it was made from, "" when it cannot be read.

    One that is not whole is being written, or its writer was stopped.
    """

    path: Path
    bytes: int
    used_s: float
    source: str
    is_whole: bool

    def is_of(self, model: Path) -> bool:
        """Whether it was made from that model file; one that does not say so is known by its name."""
        if self.source:
            return self.source == str(model.absolute())
        return re.fullmatch(re.escape(_stem(model)) + "-[0-9a-f]{16}", self.path.stem) is not None


def packed_files(folder: Path) -> list[PackedFile]:
    """The files of a folder, also broken ones and those that are not whole."""
    found: list[PackedFile] = []
    for path in sorted((*folder.glob(f"*{PACKED_SUFFIX}"), *folder.glob(f"*{PART_SUFFIX}"))):
        with contextlib.suppress(OSError):  # removed meanwhile
            state = path.stat()
            found.append(
                PackedFile(
                    path=path,
                    bytes=state.st_size,
                    used_s=state.st_mtime,
                    source=_source_of(path),
                    is_whole=path.suffix == PACKED_SUFFIX,
                )
            )
    return found


def packed_bytes(model: Path, files: Iterable[PackedFile]) -> int:
    """What those of the files take that were made from a model file."""
    return sum(f.bytes for f in files if f.is_of(model))


def remove_packed(model: Path, folder: Path) -> int:
    """Remove what was made from a model file; the bytes that are free now."""
    return sum(f.bytes for f in packed_files(folder) if f.is_of(model) and _remove(f))


def ignored(path: Path, reason: Exception) -> None:
    """Say that a file is not used and why."""
    _log.warning("packed weights are made anew: %s: %s", path, getattr(reason, "message", reason))


def _source_of(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return read_table(fd).source
    except (CheckpointError, OSError):
        return ""
    finally:
        os.close(fd)


def _remove(file: PackedFile) -> bool:
    """Remove a file, unless it is being written; whether it is gone."""
    try:
        if file.is_whole:
            file.path.unlink()
            return True
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(fd, file.path):  # else its writer finished, or another one removed it
            file.path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _stem(model: Path) -> str:
    """What the names of a model's files begin with."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", model.stem or "model")[:80]


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
