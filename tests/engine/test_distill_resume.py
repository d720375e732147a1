"""`headrace distill --resume`: what cannot be gone on from is refused before anything is written."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.base.errors import ConfigError, HeadraceError
from headrace.tools.distill import folder as folder_page
from headrace.tools.distill import run as run_page
from headrace.tools.distill.folder import check_folder, write_folder
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.run import distill
from tests.kit import distill as kit
from tests.kit.distill import Notes, config_of, make_target, write_prompts


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of a model of two layers."""
    return config_of(make_target(tmp_path_factory.mktemp("target") / "model", layers=2))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.txt")


def plan(out, prompts, method="medusa", **more) -> Plan:
    """Two steps, whatever is learned in them."""
    base = {"minutes": 0.05, "vocab": 32, "max_tokens": 32, "text_tokens": 200, "steps": 2}
    return kit.plan(out, prompts, method=method, **(base | more))


@pytest.fixture(scope="module")
def written(tmp_path_factory, config, prompts):
    """Heads by method."""
    found = {}
    for method in ("medusa", "eagle"):
        found[method] = tmp_path_factory.mktemp("heads") / method
        distill(config, plan(found[method], prompts, method), Notes())
    return found


@pytest.fixture
def heads(written, tmp_path):
    """A copy of them, by method."""
    return {m: shutil.copytree(path, tmp_path / m) for m, path in written.items()}


def refused(monkeypatch, config, asked, words):
    """It is refused with these words before the model is built, and no file changes."""
    before = {f.name: f.read_bytes() for f in asked.out.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(run_page, "LLM", lambda config: pytest.fail("the model is built"))
        with pytest.raises(ConfigError, match=words) as error:
            distill(config, asked, Notes())
    assert "leave --resume out" in str(error.value)
    assert {f.name: f.read_bytes() for f in asked.out.iterdir()} == before


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_a_training_goes_on_with_the_same_texts_to_judge_by(config, prompts, heads, method):
    one = json.loads((heads[method] / "report.json").read_text())
    two = distill(config, plan(heads[method], prompts, method, resume=True, minutes=0.2), Notes())
    assert (two["rounds"], two["steps"]) == (2, 4)
    for key in ("judged", "judged_tokens", "prompts", "depth", "max_tokens"):
        assert one[key] == two[key]
    assert one["judged_tokens"] <= 2 * 32, "two greedy answers, each once"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "eagle"}, "were made with --heads 'medusa', asked for is 'eagle'; ask for the same"),
        ({"seed": 3}, "were made with --seed 0, asked for is 3; ask for the same"),
        ({"heads": 3}, "were made with --depth 2, asked for is 3; ask for the same"),
        ({"max_tokens": 33}, "were made with --max-tokens 32, asked for is 33"),
    ],
)
def test_heads_made_with_other_settings_are_not_gone_on_from(
    monkeypatch, config, prompts, heads, more, words
):
    asked = plan(heads["medusa"], prompts, **({"method": "medusa"} | more), resume=True)
    refused(monkeypatch, config, asked, words)


def test_other_prompts_are_refused(monkeypatch, config, tmp_path, heads):
    (tmp_path / "more.txt").write_text("one\ntwo\nthree\n")
    asked = plan(heads["medusa"], tmp_path / "more.txt", resume=True)
    refused(monkeypatch, config, asked, "were made with --prompts with the digest '[0-9a-f]{32}', asked for")


def test_another_model_is_refused_even_where_it_is_as_wide(monkeypatch, config, tmp_path, prompts, heads):
    other = config_of(make_target(tmp_path / "other", layers=2))
    refused(monkeypatch, other, plan(heads["medusa"], prompts, resume=True), "were made with model '.*target")


def test_other_weights_under_the_same_name_are_noticed_by_what_they_answer(tmp_path, config, prompts):
    folder, out = make_target(tmp_path / "model", layers=2), tmp_path / "heads"
    here = config_of(folder)
    distill(here, plan(out, prompts), Notes())
    whole = (out / "model.safetensors").read_bytes()
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: t[::-1].copy() if "embed" in name else t for name, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ConfigError, match=r"answers otherwise than when the heads in .* or leave --resume out"
    ):
        distill(here, plan(out, prompts, resume=True), Notes())
    assert (out / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        ("medusa", "hidden_size", 576),
        ("medusa", "num_heads", 3),
        ("eagle", "norm_before_residual", False),
        ("eagle", "eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}),
        ("eagle", "attention_bias", True),
    ],
)
def test_heads_that_compute_something_else_are_refused(
    monkeypatch, config, prompts, heads, method, key, value
):
    """Their shapes are the same."""
    path = heads[method] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    refused(monkeypatch, config, plan(heads[method], prompts, method, resume=True), f"{key!r} is .* must be")


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_tensors_of_another_shape_are_refused(monkeypatch, config, prompts, heads, method):
    path = heads[method] / "model.safetensors"
    name = "lm_heads.1.weight" if method == "medusa" else "lm_head.weight"
    tensors = load_file_bits(path)
    save_file({n: t[:, :-1].copy() if n == name else t for n, t in tensors.items()}, path)
    asked = plan(heads[method], prompts, method, resume=True)
    refused(monkeypatch, config, asked, rf"have '{name}' of shape .*, these need \[32, ")


def load_file_bits(path):
    """The tensors of a file, bfloat16 as float32."""
    from headrace.tools.distill.folder import read_folder

    return dict(read_folder(path.parent)[1])


@pytest.mark.parametrize(("method", "name"), [("medusa", "token_map"), ("eagle", "d2t")])
@pytest.mark.parametrize("wrong", ["missing", "repeated", "too large", "floats"])
def test_a_broken_vocabulary_is_refused(monkeypatch, config, prompts, heads, method, name, wrong):
    path = heads[method] / "model.safetensors"
    tensors = load_file_bits(path)
    tokens = tensors.pop(name)
    broken = {"repeated": tokens * 0 - np.arange(len(tokens)), "too large": tokens + 10**6}
    if wrong != "missing":
        tensors[name] = broken[wrong] if wrong in broken else tokens.astype(np.float32)
    save_file(tensors, path)
    refused(monkeypatch, config, plan(heads[method], prompts, method, resume=True), f"{name!r} must give")


@pytest.mark.parametrize("key", ["rounds", "training_tokens", "steps", "seconds", "judged"])
@pytest.mark.parametrize("value", ["7", None, [1], True, -1, float("nan"), 1 << 70])
def test_a_report_with_a_wrong_count_is_refused_by_name(monkeypatch, config, prompts, heads, key, value):
    if key == "judged" and value == "7":
        value = 7
    path = heads["medusa"] / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    asked = plan(heads["medusa"], prompts, resume=True)
    refused(monkeypatch, config, asked, rf"report\.json: {key!r} must be a .*got .*mend it")


def test_nothing_to_go_on_from_is_said_so(tmp_path, config, prompts):
    with pytest.raises(ConfigError, match="holds no heads to go on from; leave --resume out"):
        distill(config, plan(tmp_path / "none", prompts, resume=True), Notes())


@pytest.mark.parametrize("broken_at", range(6))
def test_a_failure_while_writing_leaves_what_was_there_whole(tmp_path, monkeypatch, broken_at):
    """The disk is full at any of the three files, or a name cannot be replaced."""
    out, one, two = tmp_path / "heads", np.zeros(9, np.float32), np.ones(9, np.float32)
    write_folder(out, {"n": 1}, {"t": one}, {"n": 1})
    before = {f.name: f.read_bytes() for f in out.iterdir()}
    assert set(before) == {"config.json", "model.safetensors", "report.json"}
    count = 0

    def full(number):
        nonlocal count
        count += 1
        if count == broken_at + 1:
            raise OSError(28, "No space left on device")

    real = Path.replace
    monkeypatch.setattr(folder_page.os, "fsync", full)
    monkeypatch.setattr(Path, "replace", lambda path, to: (full(0), real(path, to))[1])
    with pytest.raises(HeadraceError, match=r"cannot be written to .*No space left"):
        write_folder(out, {"n": 2}, {"t": two}, {"n": 2})
    after = {f.name: f.read_bytes() for f in out.iterdir()}
    assert after.keys() == before.keys()
    assert after["report.json"] == before["report.json"], "it comes last"
    if broken_at <= 3:
        assert after == before
    write_folder(out, {"n": 2}, {"t": two}, {"n": 2})
    assert json.loads((out / "report.json").read_text()) == {"n": 2}
    assert load_file(out / "model.safetensors")["t"].tolist() == two.tolist()


def test_what_a_killed_writing_left_is_written_over(tmp_path):
    out = tmp_path / "heads"
    write_folder(out, {}, {"t": np.zeros(1, np.float32)}, {})
    (out / "model.safetensors.part").write_bytes(b"half")
    check_folder(out)
    write_folder(out, {}, {"t": np.ones(1, np.float32)}, {})
    assert len(list(out.iterdir())) == 3
