"""Source `hub`: model files of a hub repository, through `huggingface_hub`.

An unreachable hub must cost seconds only, so one short request asks first; the same request tells the file's
checksum, so that a repository whose file has changed is left alone before anything is downloaded.
"""

import threading
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
from huggingface_hub import constants

from headrace.base.errors import DownloadError, NotFoundError
from headrace.compute.weights.catalogue import Progress
from headrace.compute.weights.catalogue_entries import CatalogueEntry, HubFile

PROBE_TIMEOUT_S = 3.0
CHECKPOINT_PATTERNS = ("*.safetensors", "*.json", "*.jinja")
"""What a checkpoint directory is made of; code and pickled weights are never fetched."""


def obtain(file: HubFile, e: CatalogueEntry, work: Path, progress: Progress) -> Path:
    """Download one file into `work`; a broken download goes on where it stopped.

    Raises:
        DownloadError: the hub is unreachable, or does not have this very file.
    """
    probe(file.repo, file.filename, e.sha256)
    progress(e.name, 0, e.size_bytes)
    return _download(file.repo, file.filename, work)


def probe(repo: str, filename: str, sha256: str | None = None) -> None:
    """Ask the hub for a file's headers, within `PROBE_TIMEOUT_S`.

    Raises:
        DownloadError: offline, unreachable, not there, or another checksum than `sha256`.
    """
    if constants.HF_HUB_OFFLINE:
        raise DownloadError("the hub is switched off (HF_HUB_OFFLINE)")
    url = f"{constants.ENDPOINT}/{repo}/resolve/main/{filename}"
    answers: list[httpx.Response | Exception] = []

    def ask() -> None:
        try:
            answers.append(httpx.head(url, timeout=PROBE_TIMEOUT_S))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as err:
            answers.append(err)

    thread = threading.Thread(target=ask, name="hub-probe", daemon=True)  # name look-ups have no time limit
    thread.start()
    thread.join(PROBE_TIMEOUT_S + 0.5)
    if not answers:
        raise DownloadError(f"no answer within {PROBE_TIMEOUT_S:g} s")
    answer = answers[0]
    if isinstance(answer, Exception):
        raise DownloadError(f"unreachable ({type(answer).__name__})")
    if answer.status_code >= 400:
        raise DownloadError(f"HTTP {answer.status_code} for {filename}")
    found = answer.headers.get("x-linked-etag", "").strip('"')
    if sha256 is not None and len(found) == 64 and found != sha256:
        raise DownloadError(f"{filename} there has SHA-256 {found}, not {sha256}")


def fetch_repo(hub_id: str, folder: Path) -> Path:
    """A checkpoint directory (`owner/name`) or one GGUF file (`owner/name/file.gguf`) of the hub.

    Raises:
        NotFoundError: the repository holds no safetensors checkpoint.
        DownloadError: it could not be fetched.
    """
    owner, name, *rest = hub_id.split("/")
    repo = f"{owner}/{name}"
    to = folder / "hub" / f"{owner}--{name}"
    if rest:
        path = to / rest[0]
        if not path.is_file():
            probe(repo, rest[0])
            _download(repo, rest[0], to)
        return path
    complete = to / ".complete"
    if not complete.is_file():
        probe(repo, "config.json")
        try:
            huggingface_hub.snapshot_download(repo, local_dir=to, allow_patterns=list(CHECKPOINT_PATTERNS))
        except (huggingface_hub.errors.HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as err:
            raise DownloadError(f"could not fetch {repo} from the hub: {err}") from err
        if not any(to.glob("*.safetensors")):
            raise NotFoundError(
                f"hub repository {repo} has no safetensors weights; for a GGUF file name it: {repo}/FILE.gguf"
            )
        complete.touch()
    return to


def _download(repo: str, filename: str, to: Path) -> Path:
    kwargs: dict[str, Any] = {"local_dir": to, "etag_timeout": PROBE_TIMEOUT_S}
    try:
        return Path(huggingface_hub.hf_hub_download(repo, filename, **kwargs))
    except (huggingface_hub.errors.HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as err:
        raise DownloadError(f"download of {filename} from {repo} failed: {err}") from err
