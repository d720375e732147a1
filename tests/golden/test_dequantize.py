"""Dequantization of every GGUF type equals the gguf package to the last bit."""

import gguf
import numpy as np
import pytest

from headrace.compute.quant.scheme import SCHEMES

QUANTIZED = [s for s in SCHEMES.all().values() if s.gguf_id is not None]


def reference(scheme, rows):
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(scheme.gguf_id))


def same_bits(ours, theirs):
    theirs = np.ascontiguousarray(theirs, np.float32)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


@pytest.mark.parametrize("scheme", QUANTIZED, ids=lambda s: s.name)
def test_random_bytes(scheme):
    # Any bytes are legal: random ones hold every scale, minimum, infinity, NaN and denormal.
    rng = np.random.default_rng(7)
    k = 512
    rows = rng.integers(0, 256, (300, scheme.row_bytes(k)), np.uint8)
    same_bits(scheme.dequantize(rows), reference(scheme, rows))


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0x80, 0x55])
@pytest.mark.parametrize("scheme", QUANTIZED, ids=lambda s: s.name)
def test_extreme_bytes(scheme, fill):
    rows = np.full((2, scheme.row_bytes(256)), fill, np.uint8)
    same_bits(scheme.dequantize(rows), reference(scheme, rows))


def test_sizes_match_the_format():
    assert len(QUANTIZED) == 13
    for scheme in QUANTIZED:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(scheme.gguf_id)]
        assert (scheme.group, scheme.group_bytes) == (block, size)


def test_rows_of_a_memory_map_are_read_only_and_not_copied_in_place():
    scheme = SCHEMES.get("q4_0")
    rows = np.zeros((4, scheme.row_bytes(64)), np.uint8)
    rows.flags.writeable = False
    assert not np.any(scheme.dequantize(rows))
