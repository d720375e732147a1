"""Rehearsals: a model of zeros with the header's shapes; and what its steps say of the whole model."""

import json

import numpy as np
import pytest

from headrace.base.config import EngineConfig, KVConfig, ModelConfig, ScheduleConfig
from headrace.cli.main import main
from headrace.compute.runner.work import Work
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.compute.weights.tensors import WeightMap
from headrace.engine.build import open_model
from headrace.engine.cost import rehearsal
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import CostShape
from tests.kit.engine import VOCAB, tiny_llama
from tests.kit.heads import random_medusa
from tests.unit.test_step_cost import LIMITS, row


def config(**given):
    return EngineConfig(
        model=ModelConfig(model=str(tiny_llama())),
        kv=KVConfig(num_blocks=64),
        schedule=ScheduleConfig(max_num_seqs=4, **given),
    )


def test_a_hollow_model_has_the_shapes_and_formats_and_no_values():
    weights = open_checkpoint(tiny_llama()).weights
    hollow = weights.hollow(weights.names())
    assert hollow.names() == weights.names()
    for name in weights.names():
        if len(weights._sources[name].shape) == 2:
            real, made = weights.matrix(name), hollow.matrix(name)
            assert (made.n, made.k, made.type_name) == (real.n, real.k, real.type_name)
            assert not made.data.any()
            assert real.data.any()
    assert weights.stored_bytes("layers.0.") == weights.stored_bytes("layers.1.") > 0
    assert weights.stored_bytes("") == hollow.stored_bytes("")


def test_only_layers_that_exceed_the_caches_are_taken(monkeypatch):
    checkpoint = open_checkpoint(tiny_llama())
    assert rehearsal.thin(checkpoint)[1] == 2
    monkeypatch.setattr(rehearsal, "LAYER_BYTES", 1)
    part, layers = rehearsal.thin(checkpoint)
    assert layers == 2  # never fewer: what layers share must show
    assert len(part.spec.layers) == 2
    assert part.content_id != checkpoint.content_id


def test_no_weight_of_the_model_is_read(monkeypatch):
    opened = open_model(config(), with_text=False)
    real = opened.checkpoint.weights

    def refuse(name):
        def read(self, *given):
            assert self is not real, f"{name} read a weight of the model"
            return plain[name](self, *given)

        return read

    plain = {name: getattr(WeightMap, name) for name in ("vector",)}
    for name in plain:
        monkeypatch.setattr(WeightMap, name, refuse(name))
    mapped = next(iter(real._tensors.values())).data
    assert isinstance(mapped, np.ndarray)
    cores: list[float] = []
    monkeypatch.setattr(rehearsal, "TELLING_S", 0.0)  # so small a model has short steps only
    model = rehearsal.rehearse(opened, cores.append)
    assert 0 < cores[0] < 64
    for rows in ([row(9, 1)], [row(0, 128)]):  # which is longer depends on what else runs: both are overhead
        assert 0 < model.predict(model.shape.work_of(rows)) < 10


def shape(layers):
    work = Work(per_token=8_000_000 * layers, per_logits=60_000_000, attention=((None, 2_000 * layers),))
    return CostShape.of(work, 4_000_000 * layers + 30_000_000, 800 * layers)


def seconds_of(layers, rows):
    """A machine: the parts of a step that grow with the layers, and those that do not."""
    it = shape(layers)
    work = it.work_of(rows)
    matrices = max(it.weight_bytes / 3.2e10, it.operations(work) / 4.5e11)
    attention = work.keys * it.token_bytes / 2.5e10 + work.pairs * it.per_pair / 2e11
    return 0.4e-3 + 25e-6 * work.num_rows + layers * (20e-6 + 1e-6 * work.num_rows) + matrices + attention


@pytest.mark.parametrize("layers", [8, 32, 80])
def test_a_part_says_what_the_whole_takes(layers):
    part = 8
    seen = [
        (shape(part).work_of(rows), seconds_of(part, rows))
        for rows in ([row(start, count, slot=i) for i, (start, count) in enumerate(s.rows)] for s in STEPS)
    ]
    whole = StepModel(shape(layers), LIMITS)
    model = rehearsal.fit(whole, StepModel(shape(part), LIMITS), tuple(seen), layers / part)
    for rows in (
        [row(300, 1, slot=i) for i in range(1)],
        [row(300, 1, slot=i) for i in range(12)],
        [row(300, 1, slot=i) for i in range(48)],
        [row(3000, 1)],
        [row(0, 400)],
        [row(1500, 512)],
    ):
        assert model.predict(model.shape.work_of(rows)) == pytest.approx(seconds_of(layers, rows), rel=0.15)


def test_what_layers_share_does_not_grow_with_them_and_the_rest_does():
    part, whole = StepModel(shape(8), LIMITS), StepModel(shape(32), LIMITS)
    for fit in (part._decode, part._prefill):
        fit.coefficients = [2e-3, 10e-6, 1.0, 1.0, 1.0, 1.0]
    for fit in (rehearsal.fit(whole, part, (), 4.0)._decode, whole._prefill):
        fixed_s = rehearsal._STEP_HOST_S
        assert fit.coefficients[0] == pytest.approx(fixed_s + 4 * (2e-3 - fixed_s))
        assert fit.coefficients[1:] == [10e-6, 1.0, 1.0, 1.0, 1.0]


STEPS = rehearsal._STEPS


def call(capsys, *words):
    """The object that a command prints."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert not ended.value.code
    return json.loads(capsys.readouterr().out)


def test_the_command_prints_one_object(capsys):
    report = call(capsys, "plan", str(tiny_llama()), "--num-kv-blocks", "64", "--context", "64")
    assert report["memory"]["pool_tokens"] == 1024
    assert report["memory"]["sequences"] == [{"context_tokens": 64, "sequences": 16}]
    decode = report["speed"]["decode"]
    assert [entry["sequences"] for entry in decode] == [1, 2, 4, 8, 16]
    for entry in decode:
        assert entry["tokens_per_s"] == pytest.approx(1e3 * entry["sequences"] / entry["tpot_ms"])
    assert report["speed"]["prefill"][0]["prompt_tokens"] == 128
    assert report["machine"]["read_bytes_per_s"] > 0


def test_the_command_simulates(capsys):
    traffic = call(
        capsys,
        *("plan", "simulate", str(tiny_llama()), "--num-kv-blocks", "64", "--users", "2", "--requests", "9"),
        *("--prompt-tokens", "8:32", "--output-tokens", "4", "--slo-ttft-ms", "60000"),
    )["traffic"]
    assert (traffic["requests"], traffic["finished"], traffic["good_share"]) == (9, 9, 1.0)
    assert (traffic["replicas"], traffic["saturated"]) == (1, False)


def test_what_drafts_is_counted_in_the_memory_and_the_speeds_are_told_to_be_without(capsys, tmp_path):
    def memory(*words, model=5):
        report = call(capsys, "plan", str(tiny_llama(model)), "--num-kv-blocks", "64", *words)
        assert any("without" in note for note in report["notes"]) == bool(words)
        assert report["speed"]["decode"][0]["tokens_per_s"] > 0
        return report["memory"]

    def grown(*words):
        """By how much each part grows, where any does."""
        found = memory("--speculate", *words)
        return {name: found[name] - plain.get(name, 0) for name in found if found[name] != plain.get(name)}

    plain, other = memory(), memory(model=6)
    step = grown("early-exit=1")["drafting_step_bytes"]
    by_draft = grown(f"draft={tiny_llama(6)}")
    weights, token = other["weights_bytes"], other["kv_bytes_per_token"]
    whole = weights + 1024 * token
    assert by_draft["drafting_weights_bytes"] == by_draft["weights_bytes"] == weights
    assert by_draft["drafting_kv_bytes_per_token"] == by_draft["kv_bytes_per_token"] == token
    assert by_draft["kv_pool_bytes"] == 1024 * token
    assert by_draft["resident_bytes"] >= whole + by_draft["drafting_step_bytes"]
    assert by_draft["total_bytes"] >= whole
    assert by_draft["drafting_step_bytes"] == step > 0
    by_heads = grown(f"medusa={random_medusa(tmp_path / 'm', 32, VOCAB, heads=3)}")
    # With each block of a head, a matrix of zeros as large as its own.
    assert by_heads["weights_bytes"] == 4 * 3 * (2 * 32 * 32 + 32 + VOCAB * 32)
    assert {"kv_pool_bytes", "drafting_kv_bytes_per_token"}.isdisjoint(by_heads)
    assert {"weights_bytes", "kv_pool_bytes"}.isdisjoint(grown("early-exit=1"))
    assert not any(name.startswith("drafting") for name in grown("auto"))


def test_traffic_is_simulated_without_the_drafts_that_the_memory_is_counted_for(capsys):
    words = ("plan", "simulate", str(tiny_llama()), "--num-kv-blocks", "64", "--users", "2")
    report = call(capsys, *words, "--requests", "6", "--prompt-tokens", "8", "--speculate", "early-exit=1")
    assert report["traffic"]["finished"] == 6
    assert report["memory"]["drafting_step_bytes"] > 0


def test_the_command_says_what_the_figures_rest_on(capsys):
    words = ("plan", "simulate", str(tiny_llama()), "--num-kv-blocks", "64", "--rate", "10000000")
    more = ("--requests", "90", "--prompt-tokens", "8", "--output-tokens", "4", "--replicas", "2")
    with pytest.raises(SystemExit):
        main([*words, *more])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("saturated: 1e+07 requests/s asked") for line in lines)
    assert any("each of the 2 has a machine like this one" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["a", "b"], "one model"),
        (["simulate"], "plan simulate needs a MODEL"),
        (["simulate", "smollm2:135m"], "--rate"),
        (["smollm2:135m", "--memory", "lots"], "--memory"),
        ([str(tiny_llama()), "--speculate", "early-exit=3"], "1 to 2, got '3'"),
        ([str(tiny_llama()), "--speculate", "magic"], "must be one of"),
    ],
)
def test_what_is_asked_wrongly_is_said(words, part, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", *words])
    assert ended.value.code in {1, 2}
    assert part in capsys.readouterr().err
