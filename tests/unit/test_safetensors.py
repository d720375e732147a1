"""Checkpoint directories: shards, defaults, and refusals of what is broken, hostile or unsupported."""

import json
import shutil
import struct
from contextlib import suppress

import numpy as np
import pytest

from headrace.base.errors import CheckpointError, NotFoundError
from headrace.compute.models.rope import RopeBank
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.compute.weights.formats._safetensors_file import read_file
from headrace.compute.weights.formats.safetensors import describe, find_family
from headrace.compute.weights.modelspec import FAMILIES
from tests.kit.checkpoints import make, tokens
from tests.kit.forward import Harness, log_softmax


def write(path, header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def refused(path, *words):
    with pytest.raises(CheckpointError) as caught:
        read_file(path)
    for word in words:
        assert word in str(caught.value)


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_good_file(tmp_path):
    values = np.arange(6, dtype=np.float32)
    file = write(
        tmp_path / "a.safetensors", {"x": entry([2, 3], 0, 24), "__metadata__": {}}, values.tobytes()
    )
    tensor = read_file(file)["x"]
    assert tensor.shape == (2, 3)
    assert np.array_equal(tensor.rows().view(np.float32), values.reshape(2, 3))


def test_broken_files(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"short")
    refused(path, "5 bytes")
    refused(write(path, {}, length=1 << 60), "header")
    refused(write(path, b"{"), "JSON")
    refused(write(path, b"[]"), "object")
    refused(write(path, b"[" * 100_000), "JSON")
    refused(write(path, {"x": entry([2], 0, 8)}, bytes(4)), "'x'", "holds 4")
    refused(write(path, {"x": entry([2], 0, 4)}, bytes(8)), "'x'", "4 bytes")
    refused(write(path, {"x": entry([2], 8, 0)}, bytes(8)), "'x'")
    refused(write(path, {"x": entry([-2], 0, 8)}, bytes(8)), "impossible")
    refused(write(path, {"x": entry([1 << 60, 1 << 60], 0, 8)}, bytes(8)), "impossible")
    refused(write(path, {"x": entry([2], 0, 8, "F4")}, bytes(8)), "F4")
    refused(write(path, {"x": 3}), "3")
    both = {"x": entry([2], 0, 8), "y": entry([2], 4, 12)}
    refused(write(path, both, bytes(12)), "overlap")


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(make("llama").path, tmp_path / "model")


def change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def opening_refused(folder, *words):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    for word in words:
        assert word in str(caught.value)


def test_shards(folder, tmp_path):
    made = make("llama")
    sharded = tmp_path / "sharded"
    made.model.save_pretrained(sharded, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    whole, parts = open_checkpoint(folder), open_checkpoint(sharded)
    assert whole.weights.names() == parts.weights.names()
    for name in ("embed", "layers.1.down", "head"):
        a, b = (c.weights.matrix(f"{name}.weight").data for c in (whole, parts))
        assert np.array_equal(a, b)


def test_shard_names_cannot_leave_the_folder(folder):
    index = folder / "model.safetensors.index.json"
    for name in ("../model.safetensors", "/etc/passwd", "x.bin", "missing.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        opening_refused(folder, name)
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    opening_refused(folder, "'a'")


def test_pickles_and_code_are_refused_by_name(folder):
    """CVE-2025-24357, CVE-2025-66448: no legacy archive, no code from a model's folder."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    opening_refused(folder, ".bin", "never")
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    opening_refused(change(folder, auto_map={"AutoModel": "evil.Model"}), "auto_map", "never run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            ("MambaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"),
        ),
        ({"architectures": None}, ("None",)),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config", "GGUF")),
        ({"num_local_experts": 8}, ("num_local_experts", "8")),
        ({"attention_sinks": 4}, ("attention_sinks",)),
        ({"logits_scaling": 8.0}, ("logits_scaling",)),
        ({"sliding_window": 32}, ("sliding_window",)),
        ({"hidden_act": "relu2"}, ("hidden_act", "relu2", "silu")),
        ({"rope_parameters": {"rope_type": "magic"}}, ("magic", "yarn")),
        ({"rope_parameters": {"rope_type": "linear"}}, ("factor",)),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("inf")}}, ("factor", "inf")),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, ("mrope_section",)),
        ({"num_attention_heads": 3}, ("3",)),
        ({"num_key_value_heads": 3}, ("4 query heads", "3 KV heads")),
        ({"num_hidden_layers": 10**9}, ("num_hidden_layers", "1000000000")),
        ({"vocab_size": "many"}, ("vocab_size", "many")),
        ({"hidden_size": 128, "head_dim": 16}, ("shape",)),
        ({"rms_norm_eps": float("nan")}, ("rms_norm_eps",)),
        ({"tie_word_embeddings": "no"}, ("tie_word_embeddings", "no")),
        ({"is_encoder_decoder": True}, ("is_encoder_decoder",)),
        ({"attention_bias": True}, ("q_proj.bias",)),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_what_is_lacking_is_refused_by_name(folder, changes, words):
    opening_refused(change(folder, **changes), *words)


def test_unused_tensors_are_refused_but_old_buffers_are_not(folder):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert open_checkpoint(folder).spec.family == "llama"
    tensors["model.layers.0.self_attn.sinks"] = np.zeros(4, np.float32)
    save_file(tensors, folder / "model.safetensors")
    opening_refused(folder, "self_attn.sinks")


def test_generation_defaults_come_from_both_files(folder):
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.1, "top_k": 20, "eos_token_id": [5, 7], "unknown": 1})
    )
    found = open_checkpoint(folder).generation
    assert (found.temperature, found.top_k, found.top_p) == (0.1, 20, None)
    assert found.end_ids == (5, 7, 2)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    opening_refused(folder, "temperature", "hot")


def test_old_and_new_spellings_of_rope_mean_the_same(folder):
    scaled = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 64}
    spellings = [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaled}},
        {"rope_parameters": None, "rope_scaling": {"rope_type": "llama3", **scaled}, "rope_theta": 5e5},
        {"rope_parameters": None, "rope_scaling": {"type": "llama3", **scaled}, "rope_theta": 5e5},
        {"rope_parameters": {"full_attention": {"rope_type": "llama3", "rope_theta": 5e5, **scaled}}},
    ]
    specs = [
        open_checkpoint(change(folder, **spelling)).spec.layers[0].attention.rope for spelling in spellings
    ]
    assert specs[0].kind == "llama3"
    assert specs[0].base == 5e5
    assert all(spec == specs[0] for spec in specs)


def test_the_context_limit_includes_the_scaling(folder):
    def limit(**rope):
        return open_checkpoint(
            change(folder, max_position_embeddings=64, rope_parameters=rope)
        ).spec.max_length

    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    assert limit(rope_type="default") == 64
    assert limit(rope_type="linear", factor=8.0) == 512
    assert limit(rope_type="dynamic", factor=8.0) == 512
    assert limit(**yarn) == 512


def test_gemma3_reads_the_older_layout(tmp_path):
    made = make("gemma3")
    folder = shutil.copytree(made.path, tmp_path / "model")
    new = open_checkpoint(folder).spec
    change(folder, rope_parameters=None, layer_types=None, rope_theta=1e6, rope_local_base_freq=1e4)
    old = open_checkpoint(folder).spec
    assert old == new
    assert {layer.attention.rope.base for layer in new.layers} == {1e4, 1e6}


def test_a_missing_key_has_the_class_default_and_a_null_means_off(tmp_path):
    folder = shutil.copytree(make("gemma2").path, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    spec = open_checkpoint(folder).spec
    assert (spec.layers[0].attention.softcap, spec.final_softcap) == (50.0, 30.0)
    change(folder, attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=None)
    spec = open_checkpoint(folder).spec
    assert (spec.layers[0].attention.softcap, spec.final_softcap) == (None, None)
    assert all(layer.attention.window is None for layer in spec.layers)


def test_dummy_weights_run_and_are_the_same_every_time(folder):
    from headrace.compute.ops.backends.reference import ReferenceBackend

    (folder / "model.safetensors").unlink()
    logits = [
        Harness(open_checkpoint(folder, "dummy"), ReferenceBackend()).logits(tokens(5)) for _ in range(2)
    ]
    assert np.array_equal(logits[0], logits[1])
    assert np.isfinite(log_softmax(logits[0])).all()


def test_nothing_usable(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(NotFoundError, match="safetensors"):
        open_checkpoint(tmp_path, "onnx")
    (tmp_path / "x.gguf").write_bytes(b"GGML....")
    with pytest.raises(CheckpointError, match="GGUF"):
        open_checkpoint(tmp_path / "x.gguf")


ODD = (
    *(None, -1, 0, 1, 2**31, 2**63, "x", "", [], {}, [1], ["a"], [[1]], [None], True, 1.5, 1e308, {"a": 1}),
    *(float("nan"), float("inf"), 1e-9, [0.0] * 8, [float("nan")] * 8, [1] * 8),
)
CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "architectures": ["LlamaForCausalLM"],
}
SOMETIMES = (
    *(
        "layer_types",
        "use_sliding_window",
        "max_window_layers",
        "attention_bias",
        "mlp_bias",
        "sliding_window",
    ),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window_pattern"),
    *(
        "rope_parameters",
        "rope_scaling",
        "partial_rotary_factor",
        "rope_local_base_freq",
        "hidden_activation",
    ),
    *("original_max_position_embeddings", "tie_word_embeddings", "quantization_config", "auto_map"),
)
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1, "truncate": True},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


def describe_and_turn(config):
    """Everything that numbers of a configuration go through before weights are read."""
    spec, _ = describe(*find_family(config), config)
    return RopeBank([layer.attention.rope for layer in spec.layers], 64, 2)


@pytest.mark.parametrize("family", FAMILIES.names())
def test_configurations_of_any_wrong_type_are_refused_and_nothing_else(family):
    good = CONFIG | {"architectures": [FAMILIES.get(family).architectures[0]]}
    for key in (*good, *SOMETIMES):
        for value in ODD:
            with suppress(CheckpointError):
                describe_and_turn(good | {key: value})


@pytest.mark.parametrize("kind", SCALINGS)
def test_at1_rope_parameters_of_any_wrong_value_are_refused_and_nothing_else(kind):
    scaling = SCALINGS[kind] | {"rope_type": kind}
    if kind != "dynamic":
        scaling["original_max_position_embeddings"] = 32
    describe_and_turn(CONFIG | {"rope_scaling": scaling})
    for key in (*scaling, "rope_theta", "partial_rotary_factor", "type", "attention_factor"):
        for value in ODD:
            with suppress(CheckpointError):
                describe_and_turn(CONFIG | {"rope_scaling": scaling | {key: value}})
            with suppress(CheckpointError):
                describe_and_turn(CONFIG | {"rope_scaling": scaling, key: value})
