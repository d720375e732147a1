"""From a model's name to its file: catalogue names, paths and hub ids.

Standard library only until a fetch is needed. A catalogue model lies in `cache_dir()/models`. Its size is
checked at each start; its SHA-256 once, remembered in a side file with the size and modification time it
was computed for.
"""

import contextlib
import difflib
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from headrace.base.env import cache_dir
from headrace.base.errors import DownloadError, NotFoundError
from headrace.compute.weights.catalogue_entries import CATALOGUE, CatalogueEntry

Progress = Callable[[str, int, int], None]
"""Called with a label, bytes done and bytes in all while a model is fetched."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,120}\.gguf)?")
_CHUNK_BYTES = 1 << 22


def models_dir() -> Path:
    """Folder of fetched models."""
    return cache_dir() / "models"


def packed_dir() -> Path:
    """Folder of packed weights (`weights/packed`)."""
    return cache_dir() / "packed"


def names() -> tuple[str, ...]:
    """Catalogue names, in catalogue order."""
    return tuple(e.name for e in CATALOGUE)


def entry(name: str) -> CatalogueEntry:
    """The catalogue entry of that name.

    Raises:
        NotFoundError: no such name; the message lists what there is.
    """
    for e in CATALOGUE:
        if e.name == name:
            return e
    raise unknown(name)


def unknown(name: str) -> NotFoundError:
    """The error for a name that is no model."""
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return NotFoundError(
        f"no model {name!r}: neither a catalogue name ({', '.join(names())}), nor a .gguf file, "
        f"nor a checkpoint directory, nor a hub id of the form owner/name{hint}"
    )


def cached_path(e: CatalogueEntry) -> Path:
    """Where the entry's file lies, or will lie."""
    return models_dir() / e.filename


def locate(name_or_path: str, *, progress: Progress | None = None) -> Path:
    """The `.gguf` file or checkpoint directory of a model, fetched when it is not here yet.

    Args:
        name_or_path: catalogue name, path of a `.gguf` file or checkpoint directory, or hub id
            (`owner/name`, or `owner/name/file.gguf`).
        progress: told about downloads; None shows a bar on a terminal.

    Raises:
        NotFoundError: nothing of that name.
        DownloadError: it could not be fetched, or its size or checksum is wrong.
    """
    if name_or_path in names():
        return _locate_entry(entry(name_or_path), progress)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise NotFoundError(f"{path} is not a model: expected a .gguf file or a checkpoint directory")
        return path
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise NotFoundError(f"{path} is not a checkpoint directory: it has no config.json")
        return path
    if _HUB_ID.fullmatch(name_or_path):
        from headrace.compute.weights.fetch_hub import fetch_repo  # noqa: PLC0415 - only a fetch needs the hub client

        return fetch_repo(name_or_path, models_dir())
    raise unknown(name_or_path)


def present(name_or_path: str) -> Path | None:
    """Where a model lies that is here already, not verified; None: `locate` has to say."""
    path = cached_path(entry(name_or_path)) if name_or_path in names() else Path(name_or_path).expanduser()
    return path if path.is_file() or (path / "config.json").is_file() else None


def _locate_entry(e: CatalogueEntry, progress: Progress | None) -> Path:
    path = cached_path(e)
    if not path.is_file():
        from headrace.compute.weights.fetch import fetch  # noqa: PLC0415 - only a fetch needs it

        return fetch(e, models_dir(), progress=progress)
    verify(e, path)
    return path


def verify(e: CatalogueEntry, path: Path) -> None:
    """Check size and checksum; the checksum is computed once per state of the file.

    Raises:
        DownloadError: one of them is wrong; names the file.
    """
    state = path.stat()
    remedy = f"delete it with `headrace models rm {e.name}` and fetch it again"
    if state.st_size != e.size_bytes:
        raise DownloadError(f"{path} has {state.st_size} bytes instead of {e.size_bytes}; {remedy}")
    stamp = _stamp(e, path)
    side = side_file(path)
    if _read_stamp(side) == stamp:
        return
    found = sha256_of(path)
    if found != e.sha256:
        raise DownloadError(f"{path} has SHA-256 {found} instead of {e.sha256}; {remedy}")
    _write_stamp(side, stamp)


def remember(e: CatalogueEntry, path: Path) -> None:
    """Note that the file's sum has just been found right."""
    _write_stamp(side_file(path), _stamp(e, path))


def side_file(path: Path) -> Path:
    """Where the checked sum of a model file is remembered."""
    return path.with_name(path.name + ".checked.json")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _stamp(e: CatalogueEntry, path: Path) -> dict[str, object]:
    state = path.stat()
    return {"sha256": e.sha256, "size": state.st_size, "mtime_ns": state.st_mtime_ns}


def _write_stamp(side: Path, stamp: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # a read-only cache: the sum is computed at each start
        side.write_text(json.dumps(stamp))


def _read_stamp(side: Path) -> object:
    try:
        return json.loads(side.read_text())
    except (OSError, ValueError):
        return None
