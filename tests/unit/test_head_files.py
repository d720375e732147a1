"""Folders of heads: what is refused, by name, before anything is computed."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from headrace.base.config import EngineConfig, ModelConfig, SpeculateConfig
from headrace.base.errors import CheckpointError, ConfigError
from headrace.base.specs import AttentionSpec, LayerSpec, ModelSpec, RopeSpec
from headrace.compute.ops.backends.native import program as program_page
from headrace.compute.ops.backends.native.plan import plan
from headrace.compute.ops.backends.reference import ReferenceBackend
from headrace.compute.spec.heads import files as files_page
from headrace.compute.spec.heads.eagle import load_eagle
from headrace.compute.spec.heads.files import Target
from headrace.compute.spec.heads.medusa import load_medusa
from headrace.engine.build import make_runner, open_model
from headrace.engine.drafts.heads import head_facts
from tests.kit.engine import VOCAB, rig, tiny_llama
from tests.kit.heads import random_eagle, random_medusa, scripted_medusa

WIDTH = 32


def target(layers: int = 2) -> Target:
    rope = RopeSpec(kind="default", dims=16, base=10000.0, original_length=64)
    attention = AttentionSpec(heads=4, kv_heads=2, head_size=16, scale=0.25, rope=rope)
    layer = LayerSpec(attention=attention, mlp_width=64)
    spec = ModelSpec(
        family="llama", vocab_size=VOCAB, width=WIDTH, layers=(layer,) * layers, norm_eps=1e-5, max_length=64
    )
    backend = ReferenceBackend()
    table = np.zeros((VOCAB, WIDTH), np.float32)
    from headrace.compute.ops.api import Weight

    handle = backend.matrix(
        [Weight(name="e", type_name="f32", n=VOCAB, k=WIDTH, data=table.view(np.uint8).reshape(VOCAB, -1))]
    )
    return Target(spec=spec, embed=handle, head=handle)


def medusa(path):
    return load_medusa(path, ReferenceBackend(), target())


def eagle(path):
    return load_eagle(path, ReferenceBackend(), target(), 64)


def change(path, *, tensors=None, drop=(), config=None):
    """Change tensors and settings of a folder; None removes a setting."""
    found = load_file(path / "model.safetensors")
    found = {name: t for name, t in found.items() if name not in drop} | (tensors or {})
    save_file(found, path / "model.safetensors")
    settings = json.loads((path / "config.json").read_text()) | (config or {})
    (path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return path


@pytest.fixture
def heads(tmp_path):
    return {
        "medusa": random_medusa(tmp_path / "m", WIDTH, VOCAB, 2),
        "eagle-1": random_eagle(tmp_path / "e1", WIDTH, VOCAB),
        "eagle-3": random_eagle(tmp_path / "e3", WIDTH, VOCAB, version=3),
    }


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


WRONG_MEDUSA = (
    ({"drop": ["blocks.1.layers.0.weight"]}, "lacks the tensor 'blocks.1.layers.0.weight'"),
    ({"drop": ["lm_heads.1.weight"]}, "lacks the tensor 'lm_heads.1.weight', which its other heads have"),
    (
        {"tensors": {"lm_heads.0.weight": ones(VOCAB, 31)}},
        "'lm_heads.0.weight' .* [96, 31]; [96, 32] is needed",
    ),
    ({"tensors": {"blocks.0.layers.0.bias": ones(33)}}, "'blocks.0.layers.0.bias' .* [33]; [32] is needed"),
    ({"tensors": {"lm_heads.0.weight": ones(VOCAB, 32, dtype=np.int32)}}, "has the format i32"),
    ({"tensors": {"blocks.7.layers.0.weight": ones(32, 32)}}, "1 tensors .* 'blocks.7.layers.0.weight'"),
    ({"config": {"num_heads": 17}}, "num_heads .* 17; a whole number from 1 to 16"),
    ({"config": {"num_heads": "two"}}, "num_heads .* 'two'"),
    ({"config": {"num_hidden_layers": None}}, "lacks num_hidden_layers"),
    ({"config": {"hidden_size": 64}}, "hidden_size is 64 .* and 32 in the target: these heads were made for"),
    ({"config": {"vocab_size": 97}}, "vocab_size is 97 .* and 96 in the target"),
    ({"config": {"truncated_vocab_size": 48}}, "lacks the tensor 'token_map'"),
    ({"config": {"rope_sinks": 3}}, "rope_sinks = 3"),
    ({"config": {"auto_map": {"a": "b"}}}, "auto_map"),
)


@pytest.mark.parametrize(("changes", "words"), WRONG_MEDUSA, ids=[w for _, w in WRONG_MEDUSA])
def test_wrong_medusa_heads_are_refused_by_name(heads, changes, words):
    with pytest.raises(CheckpointError, match=re.escape(words).replace(r"\.\*", ".*").replace(r"\ ", " ")):
        medusa(change(heads["medusa"], **changes))


AT = "layers.0."
WRONG_EAGLE = (
    ("eagle-1", {"drop": [AT + "self_attn.q_proj.weight"]}, "lacks the tensor 'layers.0.self_attn.q_proj"),
    ("eagle-1", {"tensors": {"fc.weight": ones(32, 96)}}, "'fc.weight' .* [32, 96]; [32, 64] is needed"),
    ("eagle-1", {"tensors": {"layers.1.extra": ones(2)}}, "'layers.1.extra'"),
    ("eagle-1", {"config": {"num_hidden_layers": 2}}, "num_hidden_layers is 2"),
    ("eagle-1", {"config": {"hidden_size": 48}}, "hidden_size is 48"),
    ("eagle-1", {"config": {"vocab_size": 95}}, "vocab_size is 95"),
    ("eagle-1", {"config": {"num_key_value_heads": 3}}, "cannot be shared among 3"),
    ("eagle-1", {"config": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}}, "rope type 'dynamic'"),
    ("eagle-1", {"config": {"intermediate_size": 1 << 40}}, "intermediate_size"),
    ("eagle-3", {"drop": ["d2t"]}, "lacks 'd2t'"),
    ("eagle-3", {"drop": ["lm_head.weight"]}, "lacks 'lm_head.weight'"),
    ("eagle-3", {"drop": ["norm.weight"]}, "lacks the tensor 'norm.weight'"),
    ("eagle-3", {"tensors": {"d2t": np.full(48, 60, np.int64)}}, "d2t of .* names token 96"),
    ("eagle-3", {"tensors": {"d2t": -np.arange(48, dtype=np.int64)}}, "names a token twice"),
    ("eagle-3", {"config": {"draft_vocab_size": 97}}, "draft_vocab_size"),
    ("eagle-3", {"config": {"target_hidden_size": 64}}, "target_hidden_size is 64"),
    ("eagle-3", {"config": {"eagle_config": None}}, "the layers (2, 1, -1)"),
    (
        "eagle-3",
        {"config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}}},
        "the layers [0, 1, 9]",
    ),
)


@pytest.mark.parametrize(("kind", "changes", "words"), WRONG_EAGLE, ids=[w for _, _, w in WRONG_EAGLE])
def test_wrong_eagle_heads_are_refused_by_name(heads, kind, changes, words):
    with pytest.raises(CheckpointError, match=re.escape(words).replace(r"\.\*", ".*").replace(r"\ ", " ")):
        eagle(change(heads[kind], **changes))


def stored(values, kind: str):
    """The same in another float format of a file."""
    return torch.from_numpy(np.asarray(values, np.float32)).to(getattr(torch, kind))


@pytest.mark.parametrize("form", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("medusa", "blocks.1.layers.0.weight"),
        ("medusa", "blocks.0.layers.0.bias"),
        ("medusa", "lm_heads.1.weight"),
        ("eagle-1", "fc.weight"),
        ("eagle-3", "midlayer.self_attn.v_proj.weight"),
        ("eagle-3", "norm.weight"),
        ("eagle-3", "lm_head.weight"),
    ],
)
def test_one_number_that_is_not_finite_is_refused_by_name(heads, kind, name, value, form, monkeypatch):
    """Wherever it stands, also behind the part that is looked at first."""
    monkeypatch.setattr(files_page, "_PART", 16)
    tensors = load_file(heads[kind] / "model.safetensors")
    tensors[name].flat[-1] = value
    changed = {
        n: stored(t, form) if t.dtype == np.float32 else torch.from_numpy(t) for n, t in tensors.items()
    }
    save_torch(changed, heads[kind] / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"'{re.escape(name)}' of .* holds NaN or infinite values"):
        (medusa if kind == "medusa" else eagle)(heads[kind])


@pytest.mark.parametrize("form", ["float32", "float16", "bfloat16"])
def test_the_largest_numbers_of_a_format_are_loaded(heads, form):
    values = np.full((VOCAB, WIDTH), {"float16": 65504.0}.get(form, 3.3e38), np.float32)
    tensors = load_file(heads["medusa"] / "model.safetensors") | {"lm_heads.1.weight": values}
    save_torch({n: stored(t, form) for n, t in tensors.items()}, heads["medusa"] / "model.safetensors")
    assert len(medusa(heads["medusa"]).forwards) == 2


@pytest.mark.parametrize(("kind", "name"), [("medusa", "lm_heads.1.weight"), ("eagle-3", "lm_head.weight")])
def test_a_head_of_zeros_is_refused_by_name(heads, kind, name):
    """All its drafts would be token 0. Blocks of zeros are legal: they let the state through."""
    tensors = load_file(heads[kind] / "model.safetensors")
    folder = change(heads[kind], tensors={name: np.zeros_like(tensors[name])})
    with pytest.raises(
        CheckpointError, match=f"'{name}' of .* is all zeros, so every token .* no trained head"
    ):
        (medusa if kind == "medusa" else eagle)(folder)
    blocks = {n: np.zeros_like(t) for n, t in tensors.items() if n.startswith(("blocks", "midlayer.mlp"))}
    change(folder, tensors={name: tensors[name]} | blocks)
    (medusa if kind == "medusa" else eagle)(folder)


@pytest.mark.parametrize(
    ("kind", "name", "other"),
    [
        ("medusa", "lm_heads.0.weight", "medusa_heads.lm_heads.0.weight"),
        ("medusa", "blocks.0.layers.0.bias", "medusa_head.blocks.0.layers.0.bias"),
        ("eagle-1", "fc.weight", "model.fc.weight"),
        ("eagle-1", "layers.0.self_attn.q_proj.weight", "midlayer.self_attn.q_proj.weight"),
    ],
)
def test_a_tensor_under_two_names_is_refused(heads, kind, name, other):
    """One of them would be dropped, and nobody could say which counts."""
    tensor = load_file(heads[kind] / "model.safetensors")[name]
    folder = change(heads[kind], tensors={other: tensor + 1})
    with pytest.raises(CheckpointError, match=f"holds '{re.escape(name)}' twice"):
        (medusa if kind == "medusa" else eagle)(folder)


def test_heads_as_they_are_written_are_loaded(heads, tmp_path):
    found = medusa(heads["medusa"])
    assert len(found.forwards) == 2
    assert found.tokens is None
    assert found.weight_bytes == 2 * 4 * (2 * 32 * 32 + VOCAB * 32)
    one, three = eagle(heads["eagle-1"]), eagle(heads["eagle-3"])
    assert one.taps.normed
    assert three.taps.inputs_of == (0, 1, 2)
    assert three.tokens is not None
    assert sorted(three.tokens.tolist()) == three.tokens.tolist()
    assert one.geometry(16, "f32").layers == 1


def test_a_head_of_its_own_is_not_needed(heads):
    """Then the target's is used."""
    found = medusa(change(heads["medusa"], drop=["lm_heads.0.weight", "lm_heads.1.weight"]))
    assert found.weight_bytes == 2 * 4 * 2 * 32 * 32


def test_tokens_of_a_map_are_checked(tmp_path):
    path = scripted_medusa(tmp_path / "m", {}, 1, tokens=[3, 5, 9])
    for wrong, words in (([3, 5, 320], "token 320"), ([3, 5, 5], "twice"), ([-1, 5, 6], "token -1")):
        change(path, tensors={"token_map": np.array(wrong, np.int64)})
        big = target()
        spec = ModelSpec(
            family="llama", vocab_size=320, width=320, layers=big.spec.layers, norm_eps=1e-5, max_length=64
        )
        with pytest.raises(CheckpointError, match=words):
            load_medusa(path, ReferenceBackend(), Target(spec=spec, embed=big.embed, head=big.head))


def test_pickles_are_not_loaded(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt.*pickle.*safetensors"):
        medusa(tmp_path)
    with pytest.raises(CheckpointError, match="no folder"):
        medusa(tmp_path / "config.json")


def test_settings_name_heads_that_are_there(heads, tmp_path):
    def opened(method):
        config = EngineConfig(speculate=SpeculateConfig(method=method))
        return open_model(
            EngineConfig(model=config.model.__class__(model=str(tiny_llama())), speculate=config.speculate),
            with_text=False,
        )

    for kind in ("medusa", "eagle-1"):
        method = kind.partition("-")[0]
        resolved = opened(f"{method}={heads[kind]},depth=2").resolved
        table = {s.name: s for s in resolved.settings}
        assert "heads" in table["draft model"].reason
    with pytest.raises(CheckpointError, match="no folder"):
        opened(f"medusa={tmp_path / 'none'}")
    with pytest.raises(ConfigError, match="medusa=PATH"):
        opened("medusa")


def test_memory_of_heads_is_planned(heads):
    facts = open_model(
        EngineConfig(model=EngineConfig().model.__class__(model=str(tiny_llama()))), with_text=False
    ).resolved.model
    medusa_facts = head_facts(f"medusa={heads['medusa']}", facts)
    eagle_facts = head_facts(f"eagle={heads['eagle-3']}", facts)
    assert medusa_facts is not None
    assert eagle_facts is not None
    assert (medusa_facts.layers, eagle_facts.layers) == (0, 1)
    assert eagle_facts.kv_heads == 1
    assert medusa_facts.stored_bytes == 4 * medusa_facts.parameters
    assert medusa_facts.stored_bytes == medusa(heads["medusa"]).weight_bytes + 4 * 2 * WIDTH  # and biases
    assert eagle_facts.vocab_size == VOCAB // 2
    assert head_facts("auto", facts) is None
    assert head_facts("off", facts) is None


@pytest.mark.parametrize("kind", ["medusa", "eagle-1", "eagle-3"])
def test_the_working_memory_of_heads_is_what_their_programs_take(heads, kind, monkeypatch):
    """One program for each head of Medusa, two for EAGLE, and states that the target keeps."""
    setting = f"{kind.partition('-')[0]}={heads[kind]}"
    sizes: list[int] = []

    def noted(found):
        made = plan(found)
        sizes.append(made.size)
        return made

    monkeypatch.setattr(program_page, "plan", noted)
    taken = []
    for speculate in ("off", setting):
        config = EngineConfig(
            model=ModelConfig(model=str(tiny_llama())), speculate=SpeculateConfig(method=speculate)
        )
        resolved = open_model(config, with_text=False).resolved
        sizes.clear()
        subject = rig("native", 1)
        make_runner(resolved, subject.model, subject.backend)
        taken.append((sum(sizes), resolved.step_shape.step_bytes + resolved.beside.step_bytes))
    (plain, plain_planned), (drafting, planned) = taken
    more = drafting - plain
    assert 0 < more <= planned - plain_planned <= 6 * more
