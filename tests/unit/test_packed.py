"""Packed weights on disk: equal results, and a start without them whenever anything is wrong with them."""

import fcntl
import hashlib
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import _native
from headrace.base.clock import now_s, unix_s
from headrace.base.errors import CheckpointError
from headrace.cli.commands.models import command
from headrace.compute.ops.api import Weight
from headrace.compute.ops.backends.native.packer import SOURCE_TYPES
from headrace.compute.weights import catalogue
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.compute.weights.packed import cache as folder_of_files
from headrace.compute.weights.packed import file as packed_file
from headrace.compute.weights.packed import store
from headrace.compute.weights.packed.cache import PackedCache, packed_bytes, packed_files, remove_packed
from headrace.compute.weights.packed.file import Draft, read_table, write_file
from tests.kit.engine import make_backend, tiny_llama
from tests.kit.forward import Harness
from tests.kit.steps import random_weight

TOKENS = [1, 5, 9, 90, 17, 4, 4, 33]
MODES = ("map", "read", "auto")


def native(threads=2) -> Any:
    return make_backend("native", threads)


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(store, "MIN_BYTES", 0)
    monkeypatch.setattr(folder_of_files, "SPARE_BYTES", 0)


@pytest.fixture
def cache(tmp_path):
    return PackedCache(mode="map", limit_bytes=1 << 30, folder=tmp_path / "packed")


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(tiny_llama(), tmp_path / "model")


class Start:
    """Loads a model with a cache, as a start does, and waits for the file to be written."""

    def __init__(self, path, cache, threads=2):
        checkpoint = open_checkpoint(path)
        self.backend = native(threads)
        self.store = store.PackedStore(self.backend, checkpoint, cache)
        names = [n for n in checkpoint.weights.names() if len(checkpoint.weights._sources[n].shape) == 2]
        self.handles = {n: self.store.matrix([checkpoint.weights.matrix(n)]) for n in names}
        writer = self.store.finish()
        if writer is not None:
            writer.join()

    @property
    def found(self):
        return self.store.is_found

    def bytes(self):
        return {n: h.parts[0].data().tobytes() for n, h in self.handles.items()}


def the_file(cache):
    (found,) = cache.folder.glob("*.packed")
    return found


def change(path, at, value=None):
    data = bytearray(path.read_bytes())
    data[at] = data[at] ^ 1 if value is None else value
    path.write_bytes(data)


# ---- results ----


@pytest.mark.parametrize("mode", MODES)
def test_logits_are_equal_packed_now_and_from_the_file(model, cache, mode, monkeypatch):
    checkpoint = open_checkpoint(model)

    def logits(packed):
        backend = native()
        harness = Harness(checkpoint, backend, packed=packed)
        return harness.logits(TOKENS)

    expected = logits(None)
    assert Start(model, cache).found is False
    monkeypatch.setattr(type(native()), "matrix", lambda *_: pytest.fail("packed"))
    found = logits(replace(cache, mode=mode))
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("scheme", sorted(SOURCE_TYPES))
def test_every_scheme_comes_back_as_it_was_packed(tmp_path, scheme):
    rng = np.random.default_rng(3)
    backend = native()
    order = rng.permutation(37).astype(np.int32)
    weights = [random_weight(rng, scheme, 50, 512), random_weight(rng, scheme, 37, 1024, order)]
    handle = backend.matrix([weights[0]]), backend.matrix([weights[1]])
    packer = backend.packer
    data = [packer.packed(h)[0] for h in handle]
    table, fd = written(tmp_path, list(zip(weights, data, strict=True)))
    for mode in MODES:
        region = packer.load(fd, table.data_start, table.data_bytes, table.sums, mode)
        for weight, bytes_ in zip(weights, data, strict=True):
            taken = packer.adopt([weight], region, [table.entries[weight.name].offset])
            assert np.array_equal(packer.packed(taken)[0], bytes_)
    os.close(fd)


def written(tmp_path, matrices):
    packer = native().packer
    fd = os.open(tmp_path / "file.packed", os.O_RDWR | os.O_CREAT)
    draft = Draft(
        identity="i", layout="l", source="s", matrices=matrices, chunk=packer.chunk, checksum=packer.checksum
    )
    write_file(fd, draft)
    return read_table(fd), fd


def test_huge_pages_take_over_behind_the_same_addresses(tmp_path):
    rng = np.random.default_rng(4)
    big = rng.integers(0, 256, 70 << 20, np.uint8)  # three pieces, the last one short
    weight = Weight(name="w", type_name="f32", n=1, k=1, data=np.zeros((1, 4), np.uint8))
    table, fd = written(tmp_path, [(weight, big)])
    runtime = native().runtime
    region = runtime.load_file(fd, table.data_start, table.data_bytes, table.sums, "auto")
    os.close(fd)
    rows = (70 << 20) // (64 * 16)
    matrix = runtime.adopt(region, 0, SOURCE_TYPES["f32"], rows * 16, 16)
    assert np.array_equal(matrix.data(), big)
    address = matrix.data().ctypes.data
    deadline = now_s() + 60
    while file_pages_at(address, big.nbytes) and now_s() < deadline:
        assert np.array_equal(matrix.data(), big)
    assert not file_pages_at(address, big.nbytes)
    assert np.array_equal(matrix.data(), big)


def file_pages_at(address, size):
    """Whether a file is still mapped inside [address, address + size)."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if begin < address + size and end > address and ".packed" in line:
                return True
    return False


def test_the_layout_names_what_packing_makes():
    layout = native().packer.layout_of(())
    others = {native(t).packer.layout_of(()) for t in (1, 2)}
    assert others == {layout}
    assert len(layout) == 32


def test_a_sum_tells_every_flipped_bit_and_swapped_words():
    data = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    whole = _native.checksum(data)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert _native.checksum(data) != whole
        data[bit // 8] ^= 1 << bit % 8
    swapped = data.copy()
    swapped[0:64], swapped[64:128] = data[64:128], data[0:64]
    assert _native.checksum(swapped) != whole
    assert _native.checksum(data[:999]) != whole
    assert _native.checksum(np.append(data, np.uint8(0))) != whole


# ---- files that are not used ----


def header_digest(data):
    """Make a changed header vouch for itself."""
    size = int.from_bytes(data[12:16], "little")
    data[16:32] = hashlib.blake2b(bytes(data[32 : 32 + size]), digest_size=16).digest()


def edited(old, new):
    def edit(path):
        data = bytearray(path.read_bytes())
        assert len(old) == len(new)
        assert old in data
        at = data.index(old)
        data[at : at + len(old)] = new
        header_digest(data)
        path.write_bytes(data)

    return edit


def truncated(size):
    def edit(path):
        with path.open("r+b") as f:
            f.truncate(size if size >= 0 else path.stat().st_size + size)

    return edit


FAULTS = {
    "empty": (truncated(0), "less than a header"),
    "half a front": (truncated(20), "less than a header"),
    "half a header": (truncated(100), "does not fit"),
    "without data": (truncated(2 << 20), "instead of"),
    "one byte short": (truncated(-1), "instead of"),
    "magic": (lambda p: change(p, 0), "no file of packed weights"),
    "version": (lambda p: change(p, 8, 9), "format version 9"),
    "header size": (lambda p: change(p, 15, 255), "does not fit"),
    "header bit": (lambda p: change(p, 60), "differs from the digest"),
    "data bit": (lambda p: change(p, (2 << 20) + 77), "stored sum"),
    "last bit": (lambda p: change(p, -1), "stored sum"),
    "foreign": (edited(b'"identity": "', b'"identita": "'), "broken"),
    "offset": (edited(b'"offset": 0', b'"offset": 8'), "unaligned"),
    "far offset": (edited(b'"offset": 0,', b'"offset":1e9'), "broken|impossible"),
    "negative": (edited(b'"n": 3', b'"n":-3'), "impossible"),
    "sums": (edited(b'"chunk": 2097152', b'"chunk": 1097152'), "sums"),
    "chunk": (edited(b'"chunk": 2097152', b'"chunk": 2097151'), "sums are of"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_file_is_ignored_with_a_reason_and_made_anew(model, cache, caplog, fault):
    good = Start(model, cache).bytes()
    edit, reason = FAULTS[fault]
    edit(the_file(cache))
    with caplog.at_level(logging.WARNING):
        start = Start(model, cache)
    assert not start.found
    assert start.bytes() == good
    assert [r for r in caplog.messages if "made anew" in r]
    assert any(part in caplog.text for part in reason.split("|"))
    again = Start(model, cache)
    assert again.found
    assert again.bytes() == good


def test_a_swapped_file_is_ignored(model, tmp_path, cache, caplog):
    other = shutil.copytree(tiny_llama(seed=6), tmp_path / "other")
    Start(model, cache)
    own = the_file(cache)
    kept = own.read_bytes()
    own.unlink()
    Start(other, cache)
    the_file(cache).write_bytes(kept)
    start = Start(other, cache)
    assert not start.found
    assert "another model" in caplog.text
    assert start.bytes() != Start(model, cache).bytes()


def test_an_entry_that_does_not_fit_the_weight_is_packed(model, cache):
    good = Start(model, cache).bytes()
    path = the_file(cache)
    data = bytearray(path.read_bytes())
    at = data.index(b'"type_name": "f32"')
    data[at : at + 18] = b'"type_name": "f16"'
    header_digest(data)
    path.write_bytes(data)
    start = Start(model, cache)
    assert start.found
    assert start.bytes() == good
    assert b'"f16"' not in path.read_bytes()  # written anew, as one was missing


def test_an_entry_too_small_for_its_weight_is_packed(model, cache):
    """A header that vouches for itself and lies within the file, but has no room for n x k."""
    good = Start(model, cache).bytes()
    path = the_file(cache)
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[12:16], "little")
    header = json.loads(bytes(data[32 : 32 + size]))
    for entry in header["entries"]:
        entry["offset"], entry["bytes"] = header["data_bytes"] - 64, 64
    text = json.dumps(header).encode()
    data[32 : 32 + len(text)] = text
    data[12:16] = len(text).to_bytes(4, "little")
    header_digest(data)
    path.write_bytes(data)
    start = Start(model, cache)
    assert start.bytes() == good
    assert Start(model, cache).bytes() == good


def test_a_writer_that_opened_just_before_another_published_leaves_the_file_alone(model, cache, monkeypatch):
    checkpoint = open_checkpoint(model)
    path = cache.path(checkpoint.path, checkpoint.content_id, native().packer.layout_of(()))
    lock = fcntl.flock

    def publish_first(fd, how):
        os.pwrite(fd, b"published", 0)
        path.with_suffix(".part").rename(path)
        lock(fd, how)

    monkeypatch.setattr(folder_of_files.fcntl, "flock", publish_first)
    Start(model, cache)
    assert path.read_bytes() == b"published"
    assert [p.name for p in cache.folder.iterdir()] == [path.name]


def test_a_changed_model_is_packed_anew_and_its_old_file_goes(model, cache):
    Start(model, cache)
    old = the_file(cache)
    weights = model / "model.safetensors"
    change(weights, weights.stat().st_size - 1)
    assert not Start(model, cache).found
    assert the_file(cache) != old


def test_a_moved_model_keeps_its_file(model, tmp_path, cache):
    Start(model, cache)
    moved = tmp_path / "elsewhere" / model.name
    moved.parent.mkdir()
    model.rename(moved)
    assert Start(moved, cache).found


def test_other_layouts_have_other_files(model, cache):
    checkpoint = open_checkpoint(model)
    one = cache.path(checkpoint.path, checkpoint.content_id, "one")
    assert one != cache.path(checkpoint.path, checkpoint.content_id, "two")
    assert one.parent == cache.folder


# ---- the folder ----


def test_the_longest_unused_files_go_first(tmp_path, cache):
    models = [shutil.copytree(tiny_llama(), tmp_path / f"model{i}") for i in range(3)]
    for i, path in enumerate(models[:2]):
        (path / "config.json").write_text((path / "config.json").read_text() + " " * (i + 1))
        Start(path, cache)
    size = packed_files(cache.folder)[0].bytes
    assert len(packed_files(cache.folder)) == 2
    for file in packed_files(cache.folder):
        age = 2000 if file.source == str(models[1]) else 1000
        os.utime(file.path, (unix_s() - age, unix_s() - age))
    bounded = replace(cache, limit_bytes=size * 2 + size // 2)
    Start(models[2], bounded)
    assert {f.source for f in packed_files(cache.folder)} == {str(models[0]), str(models[2])}


def test_a_model_above_the_limit_is_not_kept(model, cache, caplog):
    Start(model, replace(cache, limit_bytes=1 << 20))
    assert not list(cache.folder.iterdir())
    assert "device.weight_cache_bytes allows 1048576" in caplog.text


def test_a_full_disk_is_seen_beforehand(model, cache, caplog, monkeypatch):
    monkeypatch.setattr(folder_of_files, "SPARE_BYTES", 1 << 60)
    Start(model, cache)
    assert not list(cache.folder.iterdir())
    assert "stay free" in caplog.text


def test_a_write_that_fails_leaves_nothing_and_no_error(model, cache, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        start = Start(model, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not start.found
    assert not list(cache.folder.iterdir())
    assert "were not kept" in caplog.text


def test_a_folder_that_cannot_be_made_costs_a_warning(model, cache, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    start = Start(model, replace(cache, folder=tmp_path / "file" / "packed"))
    assert not start.found
    assert "packed weights" in caplog.text


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.unit.test_packed import PackedCache, Start, folder_of_files, store
store.MIN_BYTES = folder_of_files.SPARE_BYTES = 0
model, cache = Path(sys.argv[1]), PackedCache(mode="map", limit_bytes=1 << 30, folder=Path(sys.argv[2]))
"""


def child(model, cache, code):
    """The command line of a process that runs `code` after `CHILD`."""
    return [sys.executable, "-c", CHILD + code, str(model), str(cache.folder), str(Path(__file__).parents[2])]


def test_a_read_only_folder_is_used_but_not_written(model, cache):
    Start(model, cache)
    command = child(model, cache, "print(Start(model, cache).found)")
    if os.geteuid() == 0:  # root may write anywhere unless it gives that up
        command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *command]
    cache.folder.chmod(0o555)
    try:
        first = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        cache.folder.chmod(0o755)
        the_file(cache).unlink()
        cache.folder.chmod(0o555)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        cache.folder.chmod(0o755)
    assert (first.stdout.strip(), second.stdout.strip()) == ("True", "False")
    assert "Permission denied" in second.stderr
    assert not list(cache.folder.iterdir())


def test_two_processes_that_start_at_once_leave_one_whole_file(model, cache):
    code = """
for _ in range(5):
    Start(model, cache)
    for path in cache.folder.glob("*.packed"): path.unlink(missing_ok=True)
Start(model, cache)
"""
    command = child(model, cache, code)
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    start = Start(model, cache)
    assert Start(model, cache).found
    assert start.bytes() == Start(model, None).bytes()
    assert not list(cache.folder.glob("*.part"))


def test_a_file_of_a_writer_that_died_is_taken_over(model, cache):
    checkpoint = open_checkpoint(model)
    layout = native().packer.layout_of(())
    cache.folder.mkdir()
    part = cache.path(checkpoint.path, checkpoint.content_id, layout).with_suffix(".part")
    part.write_bytes(b"x" * (9 << 20))
    Start(model, cache)
    assert Start(model, cache).found
    assert not part.exists()


def test_a_writer_steps_back_when_another_one_is_writing(model, cache):
    checkpoint = open_checkpoint(model)
    layout = native().packer.layout_of(())
    cache.folder.mkdir()
    part = cache.path(checkpoint.path, checkpoint.content_id, layout).with_suffix(".part")
    with part.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Start(model, cache)
        assert [p.name for p in cache.folder.iterdir()] == [part.name]


def test_files_of_a_model_are_found_and_removed_with_it(model, cache):
    Start(model, cache)
    (file,) = packed_files(cache.folder)
    assert file.source == str(model)
    assert file.bytes == the_file(cache).stat().st_size
    assert remove_packed(model.with_name("other"), cache.folder) == 0
    assert remove_packed(model, cache.folder) == file.bytes
    assert not list(cache.folder.iterdir())


def test_the_list_of_models_shows_what_packed_weights_take(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    e = catalogue.entry("smollm2:135m")
    model, folder = catalogue.cached_path(e), catalogue.packed_dir()
    assert packed_bytes(model, packed_files(folder)) == 0
    packed = PackedCache(mode="map", limit_bytes=1, folder=catalogue.packed_dir())
    path = packed.path(catalogue.cached_path(e), "identity", "layout")
    path.parent.mkdir()
    path.write_bytes(bytes(1000))
    path.with_name("smollm2-135m-other.packed").write_bytes(bytes(10))
    path.with_suffix(".part").write_bytes(bytes(200))  # its writer was stopped
    assert packed_bytes(model, packed_files(folder)) == 1200
    command("list", json=True)
    (row,) = (r for r in json.loads(capsys.readouterr().out) if r["name"] == "smollm2:135m")
    assert row["packed_bytes"] == 1200
    command("rm", "smollm2:135m")
    assert [p.name for p in folder.iterdir()] == ["smollm2-135m-other.packed"]


def test_listing_and_removing_go_by_the_same_rule(model, cache):
    """Equal names in two folders are two models: neither shows or loses what the other one has."""
    Start(model, cache)
    other = model.with_name("elsewhere") / model.name
    files = packed_files(cache.folder)
    assert packed_bytes(model, files) == files[0].bytes > 0
    assert packed_bytes(other, files) == remove_packed(other, cache.folder) == 0
    assert remove_packed(model, cache.folder) == files[0].bytes


def test_what_a_stopped_writer_left_counts_to_the_limit_and_goes_first(model, cache):
    Start(model, cache)
    size = packed_files(cache.folder)[0].bytes
    left = cache.folder / f"other-{'0' * 16}.part"
    held = cache.folder / f"held-{'0' * 16}.part"
    for path in (left, held):
        path.write_bytes(bytes(size))
    small = replace(cache, limit_bytes=3 * size)
    another = shutil.copytree(model, model.with_name("another"))
    with held.open() as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        assert remove_packed(Path("held.gguf"), cache.folder) == 0
        Start(another, small)
        names = {f.path.name for f in packed_files(cache.folder)}
        assert left.name not in names
        assert held.name in names
        assert len(names) == 3  # both models fit beside the one that is being written
        Start(shutil.copytree(model, model.with_name("third")), small)
        assert {f.source for f in packed_files(cache.folder) if f.is_whole} == {
            str(another),
            str(model.with_name("third")),
        }
    assert remove_packed(Path("held.gguf"), cache.folder) == size
    assert not held.exists()


def test_packed_weights_whose_model_file_is_gone_can_be_removed(model, cache, monkeypatch, capsys):
    Start(model, cache)
    lost = model.with_name("lost")
    model.rename(lost)
    monkeypatch.setattr(catalogue, "cached_path", lambda _: model)
    monkeypatch.setattr(catalogue, "packed_dir", lambda: cache.folder)
    command("rm", "smollm2:135m")
    assert "is not here; removed" in capsys.readouterr().out
    assert not packed_files(cache.folder)
    lost.rename(model)


def test_random_headers_never_break_reading(model, cache, tmp_path):
    Start(model, cache)
    whole = the_file(cache).read_bytes()
    rng = np.random.default_rng(0)
    num_refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(0, 3000, int(rng.integers(1, 8))):
            data[at] = int(rng.integers(0, 256))
        if rng.random() < 0.7:
            data[0:16] = whole[0:16]
            header_digest(data)
        target = tmp_path / "changed.packed"
        target.write_bytes(data)
        fd = os.open(target, os.O_RDONLY)
        try:
            table = read_table(fd)
            assert all(e.offset + e.bytes <= table.data_bytes for e in table.entries.values())
        except CheckpointError:
            num_refused += 1
        finally:
            os.close(fd)
    assert num_refused > 100


def test_chunks_are_padded_parts_one_after_the_other():
    parts = [np.full(n, i + 1, np.uint8) for i, n in enumerate((1, 64, 65, 300))]
    whole = b"".join(bytes(p) + bytes(-len(p) % 64) for p in parts)
    assert b"".join(bytes(c) for c in packed_file._chunks(parts, 128)) == whole
