"""Every family against transformers in float32: log-probabilities and greedy tokens."""

import numpy as np
import pytest

from headrace.compute.weights.checkpoint import open_checkpoint
from tests.kit.backends import BACKENDS
from tests.kit.checkpoints import FAMILIES, make, tokens
from tests.kit.forward import Harness, log_softmax

LIMIT = 1e-3


def worst(ours, theirs):
    return float(np.abs(log_softmax(ours) - log_softmax(theirs)).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_greedy_tokens(family, backend):
    made = make(family)
    harness = Harness(open_checkpoint(made.path), BACKENDS[backend]())
    prompt = tokens(100)
    assert worst(harness.logits(prompt), made.logits(prompt)) < LIMIT
    assert harness.greedy(prompt[:40], 32) == made.greedy(prompt[:40], 32)


ROPES = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 8.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    "yarn_factor": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.3,
        "beta_fast": 16.0, "beta_slow": 2.0,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}  # fmt: skip
PLACES = [0, 63, 64, 65, 299]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ROPES)
def test_rope_scaling_past_the_original_length(kind, backend):
    """AT-1: each kind, far past the original length."""
    length = 64 if kind == "dynamic" else 512
    made = make(
        "llama", rope_parameters={"rope_theta": 10000.0, **ROPES[kind]}, max_position_embeddings=length
    )
    check_rope(made, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_longrope_past_the_original_length(backend):
    """AT-1."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.0 + 0.9 * i for i in range(8)],
        "original_max_position_embeddings": 64,
    }
    made = make("phi3", sliding_window=None, rope_parameters=rope, original_max_position_embeddings=64)
    check_rope(made, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_partial_rotation(backend):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    made = make("phi3", sliding_window=None, rope_parameters=rope)
    check_rope(made, backend)


def check_rope(made, backend):
    harness = Harness(open_checkpoint(made.path), BACKENDS[backend]())
    prompt = tokens(300)
    ours, theirs = harness.logits(prompt), made.logits(prompt)
    assert worst(ours[PLACES], theirs[PLACES]) < LIMIT
    assert worst(ours, theirs) < LIMIT
    # Below the original length too, where longrope and dynamic use other angles, and over the edge while
    # decoding.
    assert worst(harness.logits(prompt[:60]), made.logits(prompt[:60])) < LIMIT


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [8, 4, 2, 1])
def test_grouped_heads(kv_heads, backend):
    """AT-3 (one rank): query heads share KV heads rightly."""
    made = make("llama", num_attention_heads=8, num_key_value_heads=kv_heads)
    harness = Harness(open_checkpoint(made.path), BACKENDS[backend](), block_size=4)
    prompt = tokens(70)
    assert worst(harness.logits(prompt), made.logits(prompt)) < LIMIT
