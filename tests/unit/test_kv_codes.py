"""Codes of int16 keys in the reference: every head size, also those the kernels do not take."""

import numpy as np
import pytest

from headrace.compute.ops.backends.reference.kv import encode_query


@pytest.mark.parametrize("size", [4, 20, 100])
def test_a_head_size_that_is_no_multiple_of_eight_is_as_if_filled_with_zeros(size):
    x = np.random.default_rng(size).normal(size=(3, size)).astype(np.float32)
    filled = np.concatenate([x, np.zeros((3, -size % 8), np.float32)], axis=1)
    codes, scales = encode_query(x)
    want, want_scales = encode_query(filled)
    assert np.array_equal(codes, want[:, :size])
    assert np.array_equal(scales, want_scales)
    assert np.abs(codes * scales - x).max() < 1e-3 * np.abs(x).max()
