"""GGUF files of every family, written as llama.cpp's converter does, against the original in transformers."""

import gguf
import numpy as np
import pytest

from headrace.compute.quant.scheme import SCHEMES
from headrace.compute.weights.checkpoint import open_checkpoint
from tests.golden.test_families import LIMIT, ROPES, worst
from tests.kit.backends import BACKENDS
from tests.kit.checkpoints import make, tokens
from tests.kit.forward import Harness
from tests.kit.gguf_files import write_model

# A head of 16 has the score scale that gemma's GGUF files imply (they do not store it).
GEMMA = {"query_pre_attn_scalar": 16}
CASES = {
    "llama": {},
    "llama_biases": {"mlp_bias": False},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": GEMMA,
    "gemma3": {**GEMMA, "final_logit_softcapping": None},
    "phi3": {},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", CASES)
def test_family(family, backend, tmp_path):
    made = make(family, **CASES[family])
    checkpoint = open_checkpoint(write_model(made, tmp_path / "model.gguf"))
    harness = Harness(checkpoint, BACKENDS[backend]())
    prompt = tokens(100)
    assert worst(harness.logits(prompt), made.logits(prompt)) < LIMIT
    assert checkpoint.generation.end_ids == (2,)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_rope_scaling(kind, tmp_path):
    made = make("llama", rope_parameters={"rope_theta": 10000.0, **ROPES[kind]})
    harness = Harness(open_checkpoint(write_model(made, tmp_path / "model.gguf")), BACKENDS["reference"]())
    prompt = tokens(200)
    assert worst(harness.logits(prompt), made.logits(prompt)) < LIMIT


def test_gemma3_scales_its_full_layers_only(tmp_path):
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    made = make("gemma3", **CASES["gemma3"], rope_parameters=rope)
    for path in (made.path, write_model(made, tmp_path / "model.gguf")):
        harness = Harness(open_checkpoint(path), BACKENDS["reference"]())
        prompt = tokens(100)
        assert worst(harness.logits(prompt), made.logits(prompt)) < LIMIT


def test_longrope(tmp_path):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.0 + 0.9 * i for i in range(8)],
        "original_max_position_embeddings": 64,
    }
    made = make("phi3", sliding_window=None, rope_parameters=rope, original_max_position_embeddings=64)
    harness = Harness(open_checkpoint(write_model(made, tmp_path / "model.gguf")), BACKENDS["reference"]())
    for length in (60, 200):
        prompt = tokens(length)
        assert worst(harness.logits(prompt), made.logits(prompt)) < LIMIT


@pytest.mark.parametrize("name", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_quantized_weights_are_what_the_package_dequantizes(name, tmp_path):
    made = make("llama", num_hidden_layers=1)
    kind = gguf.GGMLQuantizationType(SCHEMES.get(name).gguf_id)
    checkpoint = open_checkpoint(write_model(made, tmp_path / "model.gguf", kind))
    original = made.model.state_dict()["model.layers.0.self_attn.k_proj.weight"].numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
    weight = checkpoint.weights.matrix("layers.0.k.weight")
    assert weight.type_name == name
    assert np.array_equal(BACKENDS["reference"]().matrix([weight]).array, expected)
