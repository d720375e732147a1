"""A forward pass gives the same bits however the work is cut: alone or in company, whole or in chunks."""

import numpy as np
import pytest

from headrace.compute.weights.checkpoint import open_checkpoint
from tests.kit.backends import BACKENDS
from tests.kit.checkpoints import make, tokens
from tests.kit.forward import Harness

DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 1e4}}
CASES = {
    "llama": {},
    "gemma3": {"num_hidden_layers": 6},
    "phi3": {},
    "qwen2": {},
    "llama_biases": {**DYNAMIC, "max_position_embeddings": 32},
}


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8", "int16"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", CASES)
def test_chunks_and_company_change_no_bit(family, backend, dtype):
    checkpoint = open_checkpoint(make(family, **CASES[family]).path)
    harness = Harness(checkpoint, BACKENDS[backend](), block_size=4, dtype=dtype)
    prompt, other = tokens(61, seed=4), tokens(50, seed=5)
    whole = harness.logits(prompt)
    for chunks in ([1, 60], [17, 3, 41], [1] * 61):
        assert np.array_equal(harness.logits(prompt, chunks), whole)
    a, b, c = harness.open(prompt), harness.open(other), harness.open(other[:7])
    first = harness.step([(b, 9), (a, 20), (c, 7)], wanted="all")
    second = harness.step([(a, 41), (b, 1)], wanted="all")
    assert np.array_equal(first[9:29], whole[:20])
    assert np.array_equal(second[:41], whole[20:])


@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
@pytest.mark.parametrize("backend", BACKENDS)
def test_block_size_changes_little_and_the_reference_not_at_all(backend, block_size):
    checkpoint = open_checkpoint(make("mistral").path)
    prompt = tokens(70)
    usual = Harness(checkpoint, BACKENDS[backend]()).logits(prompt)
    other = Harness(checkpoint, BACKENDS[backend](), block_size=block_size).logits(prompt)
    if backend == "reference":
        assert np.array_equal(usual, other)
    assert np.abs(usual - other).max() < 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dynamic_prompt_in_chunks_past_the_length_equals_transformers(backend):
    made = make("llama", **DYNAMIC, max_position_embeddings=64)
    harness = Harness(open_checkpoint(made.path), BACKENDS[backend]())
    prompt = tokens(90)
    chunked = harness.logits(prompt, [30, 40, 20])
    assert np.abs(chunked - made.logits(prompt)).max() < 1e-2
    assert harness.greedy(prompt[:50], 32) == made.greedy(prompt[:50], 32)
