"""The GGUF reader on broken, hostile and unsupported files: a clear refusal, never a crash or much work."""

import struct
import time
import tracemalloc
from contextlib import suppress

import pytest

from headrace import _native
from headrace.base.errors import CheckpointError
from headrace.base.specs import TextArray
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.compute.weights.formats import _gguf_header
from headrace.compute.weights.formats._gguf_header import parse_header
from headrace.compute.weights.formats.gguf import read_file
from tests.kit.checkpoints import make
from tests.kit.gguf_files import pair, raw_file, tensor, text, write_model

U32, F32_TYPE, STRING, ARRAY = 4, 0, 8, 9
NAME = pair("general.architecture", STRING, text("llama"))


def u32(value):
    return struct.pack("<I", value)


def refused(raw, *words):
    with pytest.raises(CheckpointError) as caught:
        parse_header(memoryview(raw))
    for word in words:
        assert word in str(caught.value)


def test_a_good_header():
    raw = raw_file([NAME], [tensor("a", [4, 2], F32_TYPE, 0)], bytes(32))
    header = parse_header(memoryview(raw))
    assert header.metadata == {"general.architecture": "llama"}
    assert header.tensors[0].shape == (2, 4)
    assert header.data_start % 32 == 0


@pytest.mark.parametrize("version", [2, 3])
def test_supported_versions(version):
    assert parse_header(memoryview(raw_file([NAME], version=version))).version == version


def test_other_versions_and_byte_orders_are_named():
    refused(raw_file(version=1), "version 1")
    refused(raw_file(version=4), "version 4")
    refused(raw_file(version=3 << 24), "big-endian")
    refused(raw_file(magic=b"GGML"), "not a GGUF file")


@pytest.mark.parametrize("count", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_counts_beyond_the_file_are_refused_before_any_work(count):
    tracemalloc.start()
    refused(raw_file(counts=(count, 0)), "tensors")
    refused(raw_file(counts=(0, count)), "metadata entries")
    array = pair("a", ARRAY, struct.pack("<IQ", STRING, count))
    refused(raw_file([array]), "strings")
    refused(raw_file([pair("a", ARRAY, struct.pack("<IQ", U32, count))]), "ends inside")
    refused(raw_file([pair("a", STRING, struct.pack("<Q", count))]), "ends inside")
    refused(raw_file([struct.pack("<Q", count)], counts=(0, 1)), "metadata")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_large_files_cannot_make_much_larger_values():
    """Every count is true here, but as Python values the bytes would take sixteen times their room."""
    array = struct.pack("<IQ", 0, 9 << 20) + bytes(9 << 20)
    refused(raw_file([pair("a", ARRAY, array), pair("b", ARRAY, array)]), "'b'", "16777216")
    refused(raw_file([pair(f"{i:05}", 0, b"x") for i in range(65_537)]), "65537 metadata entries")


def test_nonsense_in_metadata():
    refused(raw_file([pair("a", 99, b"")]), "'a'", "99")
    refused(raw_file([pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "array of arrays")
    refused(raw_file([NAME, NAME]), "twice")
    refused(raw_file([pair("general.alignment", U32, u32(3))]), "general.alignment", "power of two")
    refused(raw_file([pair("general.alignment", U32, u32(0))]), "general.alignment")
    refused(raw_file([text("k" * 70_000)], counts=(0, 1)), "65535")
    refused(raw_file([pair("a", STRING, struct.pack("<Q", 2) + b"\xff\xfe")]), "UTF-8")


def test_nonsense_in_the_tensor_table():
    refused(raw_file([], [tensor("a", [], 0, 0) + bytes(32)]), "0 dimensions")
    refused(raw_file([], [tensor("a", [1] * 5, 0, 0)]), "5 dimensions")
    refused(raw_file([], [tensor("a", [0], 0, 0) + bytes(8)]), "impossible shape")
    refused(raw_file([], [tensor("a", [1 << 62, 1 << 62], 0, 0)]), "impossible shape")
    refused(raw_file([], [tensor("a", [8], 0, 0), tensor("a", [8], 0, 32)]), "same name")


def file_refused(tmp_path, raw, *words):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        read_file(path)
    for word in words:
        assert word in str(caught.value)


def test_tensor_data_must_lie_inside_the_file_apart_and_aligned(tmp_path):
    file_refused(tmp_path, raw_file([], [tensor("a", [64], 0, 0)], bytes(128)), "'a'", "truncated")
    file_refused(tmp_path, raw_file([], [tensor("a", [8], 0, 1 << 62)], bytes(128)), "'a'")
    file_refused(tmp_path, raw_file([], [tensor("a", [8], 0, 4)], bytes(128)), "not aligned")
    both = [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)]
    file_refused(tmp_path, raw_file([], both, bytes(128)), "'a'", "'b'", "overlap")
    file_refused(tmp_path, raw_file([], [tensor("a", [31], 8, 0)], bytes(128)), "q8_0", "groups hold 32")
    file_refused(tmp_path, b"", "not a GGUF file")


def test_every_truncation_of_a_file_is_refused(tmp_path):
    made = make("llama", num_hidden_layers=1)
    raw = write_model(made, tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    header = parse_header(memoryview(raw)).data_start
    for size in [*range(4, header, 97), header, len(raw) // 2, len(raw) - 1]:
        path.write_bytes(raw[:size])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


def test_flipped_header_bytes_never_crash(tmp_path):
    made = make("llama", num_hidden_layers=1)
    raw = write_model(made, tmp_path / "whole.gguf").read_bytes()
    header = parse_header(memoryview(raw)).data_start
    path = tmp_path / "flipped.gguf"
    for at in range(4, header, 41):
        for value in (0x00, 0xFF):
            path.write_bytes(raw[:at] + bytes([value]) + raw[at + 1 :])
            with suppress(CheckpointError):
                open_checkpoint(path)


def test_an_unknown_number_format_is_refused_by_name_when_it_is_needed(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_file([NAME], [tensor("x", [256], 17, 0)], bytes(128)))
    _, tensors = read_file(path)
    with pytest.raises(CheckpointError, match="iq2_xs"):
        tensors["x"].rows()


def test_unsupported_requests_are_refused_by_name(tmp_path):
    path = tmp_path / "model.gguf"

    def refusal(*pairs):
        path.write_bytes(raw_file(list(pairs), [tensor("token_embd.weight", [8, 4], 0, 0)], bytes(128)))
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(path)
        return str(caught.value)

    unknown = refusal(pair("general.architecture", STRING, text("mamba")))
    assert "mamba" in unknown
    assert "gemma2, gemma3, llama, phi3, qwen2, qwen3" in unknown
    assert "llama.expert_count = 8" in refusal(NAME, pair("llama.expert_count", U32, u32(8)))
    assert "3 parts" in refusal(NAME, pair("split.count", U32, u32(3)))
    assert "known" in refusal()


def test_tensors_that_no_rule_uses_are_refused(tmp_path):
    made = make("llama", num_hidden_layers=1)
    path = write_model(made, tmp_path / "model.gguf")
    raw = path.read_bytes()
    # The same length, another name: one tensor is now missing and another one is unknown.
    path.write_bytes(raw.replace(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"))
    with pytest.raises(CheckpointError, match=r"attn_q\.weight"):
        open_checkpoint(path)


def test_the_real_header_is_read_fast(smollm2_path):
    open_checkpoint(smollm2_path)
    start = time.process_time()
    checkpoint = open_checkpoint(smollm2_path)
    # Processor time, so that a busy machine does not matter; 0.05 s is usual.
    assert time.process_time() - start < 0.3
    assert checkpoint.spec.family == "llama"
    assert len(checkpoint.spec.layers) == 30
    assert checkpoint.spec.tied_embeddings
    assert checkpoint.description["bytes_by_type"] == {"q4_1": 66355200, "q8_0": 30081024, "f32": 140544}
    assert checkpoint.content_id == open_checkpoint(smollm2_path).content_id


def test_native_code_reads_the_same_texts_as_python():
    words = ["", "a", "é" * 300, "\U0001f600", "x" * 70_000, *(str(i) for i in range(3000))]
    data = b"??" + b"".join(len(w.encode()).to_bytes(8, "little") + w.encode() for w in words)
    cursor = _gguf_header._Cursor(memoryview(data))
    cursor.at = 2
    assert cursor._texts_in_windows(len(words), "words") == words
    read = _native.texts(memoryview(data), 2, len(words))
    assert read is not None
    blob, ends, has_empty, end = read
    assert TextArray(blob, ends, has_empty=has_empty) == words
    assert (has_empty, end) == (True, len(data))
    cursor.at = 2
    found = cursor.texts(len(words), "words")
    assert isinstance(found, TextArray)
    assert (found, cursor.at) == (words, len(data))
    assert cursor.at == len(data)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"\x01" + bytes(7), 1),
        (b"\xff" * 8 + b"abc", 1),
        (bytes(15), 2),
        (b"", 1),
        (bytes(8), 1 << 62),
        (b"\x01" + bytes(7) + b"\xff", 1),
    ],
)
def test_native_code_leaves_broken_texts_to_python(data, count):
    assert _native.texts(memoryview(data), 0, count) is None
    with pytest.raises(CheckpointError):
        _gguf_header._Cursor(memoryview(data)).texts(count, "words")
