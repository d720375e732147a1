"""The machine's limits: measured once, kept, and assumed where nothing can be measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import _native
from headrace.base.config import DeviceConfig, EngineConfig, KVConfig
from headrace.compute.device import limits as module
from headrace.compute.device.limits import AGREEING, ASSUMED, MEASUREMENTS, machine_limits
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.engine import build
from headrace.engine.cost.meter import StepMeter
from headrace.engine.resolve import DeviceFacts, resolve
from headrace.tools.plan.report import machine_of
from tests.kit.quantized import quantized_llama

RATES = {
    "read_bytes_s": 4e10,
    "fma_ops_s": 2e11,
    "dot_ops_s": 9e11,
    "tile_ops_s": 0.0,
    "maddubs_ops_s": 4e11,
}


@pytest.fixture
def measured(monkeypatch):
    """Count measurements; each gives RATES."""
    calls = []

    def measure(threads):
        calls.append(threads)
        return dict(RATES)

    monkeypatch.setattr(module, "_measure", measure)
    return calls


def test_measured_until_measurements_agree_and_kept(tmp_path, measured):
    first = [machine_limits(2, "avx512", folder=tmp_path) for _ in range(AGREEING)]
    again = machine_limits(2, "avx512", folder=tmp_path)
    assert measured == [2] * AGREEING
    assert [one.source for one in (*first, again)] == ["measured"] * AGREEING + ["cached"]
    assert (again.read_bytes_s, again.fma_ops_s, again.int8_ops_s) == (4e10, 2e11, 9e11)


def test_the_best_of_the_measurements_counts(tmp_path, monkeypatch):
    slow = {**RATES, "read_bytes_s": 1e10}
    given = [slow, slow, RATES, slow, RATES, {**RATES, "fma_ops_s": 1.95e11}, slow]
    found = iter(given)
    monkeypatch.setattr(module, "_measure", lambda threads: dict(next(found)))
    seen = [machine_limits(2, "avx512", folder=tmp_path) for _ in range(8)]
    assert [one.read_bytes_s for one in seen] == [1e10, 1e10, *[4e10] * 6]
    # Three came near the best: the third, the fifth and the sixth. The two before the best do not count.
    assert [one.source for one in seen] == ["measured"] * 6 + ["cached"] * 2
    assert seen[-1].fma_ops_s == 2e11


def test_a_machine_that_is_never_quiet_is_not_measured_for_ever(tmp_path, monkeypatch):
    calls = []

    def measure(threads):
        calls.append(threads)
        return {name: value * 1.2 ** len(calls) for name, value in RATES.items()}

    monkeypatch.setattr(module, "_measure", measure)
    for _ in range(MEASUREMENTS + 5):
        machine_limits(2, "avx512", folder=tmp_path)
    assert len(calls) == MEASUREMENTS


def test_what_is_known_serves_those_who_must_not_measure(tmp_path, measured):
    machine_limits(2, "avx512", folder=tmp_path)
    assert machine_limits(2, "avx512", folder=tmp_path, probe=False).source == "cached"
    assert measured == [2]


def test_another_number_of_threads_is_measured_anew(tmp_path, measured):
    machine_limits(2, "avx512", folder=tmp_path)
    machine_limits(1, "avx512", folder=tmp_path)
    assert measured == [2, 1]


def test_only_instructions_that_the_kernels_use_count(tmp_path, measured):
    assert machine_limits(2, "avx2", folder=tmp_path).int8_ops_s == 4e11
    assert machine_limits(2, "avx512", folder=tmp_path).int8_ops_s == 9e11


def test_tile_registers_speed_up_products_of_8_bits_but_not_attention(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_measure", lambda threads: {**RATES, "tile_ops_s": 3e12})
    for isa, expected in (("avx512", (3e12, 4.5e11)), ("avx2", (4e11, 2e11))):
        found = machine_limits(2, isa, folder=tmp_path)
        assert (found.int8_ops_s, found.int16_ops_s) == expected


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"read_bytes_s": 1}', json.dumps({**RATES, "fma_ops_s": -1})]
)
def test_a_damaged_file_is_measured_anew(tmp_path, measured, text):
    machine_limits(2, "avx512", folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert machine_limits(2, "avx512", folder=tmp_path).source == "measured"
    assert json.loads(file.read_text()) == {**RATES, "measurements": 1, "agreeing": 1}


def test_a_cache_that_cannot_be_written_costs_only_a_measurement(tmp_path, measured):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert machine_limits(2, "avx512", folder=blocked / "limits").source == "measured"


def test_without_a_measurement_limits_are_assumed_by_threads(tmp_path):
    found = machine_limits(4, "numpy", folder=tmp_path, probe=False)
    assert (found.source, found.threads) == ("assumed", 4)
    for name in ("read_bytes_s", "fma_ops_s", "pair_ops_s", "int8_ops_s", "int16_ops_s"):
        assert getattr(found, name) == 4 * getattr(ASSUMED, name)
    assert not list(tmp_path.iterdir())


def test_this_machine_measures_what_is_possible(tmp_path):
    native = pytest.importorskip("headrace._native")
    rates = native.machine_limits(1, 32 << 20)
    assert 1e8 < rates["read_bytes_s"] < 1e13
    assert 1e8 < rates["fma_ops_s"] < 1e13
    assert rates["dot_ops_s"] == 0 or rates["dot_ops_s"] > rates["fma_ops_s"]
    for threads, size in ((0, 32 << 20), (1, 1), (1, (32 << 20) + 1)):
        with pytest.raises(ValueError, match="must be"):
            native.machine_limits(threads, size)


def test_products_of_bfloat16_pairs_have_twice_the_rate_where_one_instruction_takes_pairs(
    tmp_path, measured, monkeypatch
):
    monkeypatch.setattr(_native, "multiplies_pairs", lambda isa: isa == "avx512")
    for probe, fma in ((False, 2 * ASSUMED.fma_ops_s), (True, RATES["fma_ops_s"])):
        for isa, times in (("avx512", 2), ("avx2", 1)):
            found = machine_limits(2, isa, folder=tmp_path, probe=probe)
            assert (found.fma_ops_s, found.pair_ops_s) == (fma, times * fma)
            said = machine_of(found)
            assert said["float32_operations_per_s"] == fma
            assert said["bfloat16_operations_per_s"] == times * fma


def test_only_avx512_may_multiply_pairs():
    has = "avx512_bf16" in Path("/proc/cpuinfo").read_text() and "avx512" in _native.isas()
    assert [isa for isa in (*_native.isas(), "none") if _native.multiplies_pairs(isa)] == ["avx512"] * has


def test_tile_registers_are_used_where_the_processor_has_them():
    """Else the comparisons of kernels would compare the vector kernels with themselves."""
    has = {"amx_int8", "avx512_bf16"} <= set(Path("/proc/cpuinfo").read_text().split())
    assert [isa for isa in (*_native.isas(), "none") if _native.multiplies_tiles(isa)] == ["avx512"] * has


def test_limits_with_and_without_tile_registers_are_kept_apart(tmp_path, monkeypatch, measured):
    for has in (True, False):
        monkeypatch.setattr(_native, "multiplies_tiles", lambda isa, has=has: has)
        machine_limits(2, "avx512", folder=tmp_path)
    assert measured == [2, 2]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("scheme", "asked", "rate"),
    [
        ("bf16", "bfloat16", "pair_ops_s"),
        ("bf16", "float32", "fma_ops_s"),
        ("q8_0", "bfloat16", "int8_ops_s"),
    ],
)
def test_steps_are_held_against_the_rate_of_pairs_where_weights_are_multiplied_so(
    monkeypatch, scheme, asked, rate
):
    limits = replace(ASSUMED, pair_ops_s=90e9)
    monkeypatch.setattr(build, "machine_limits", lambda *_, **__: limits)
    checkpoint = open_checkpoint(quantized_llama(scheme, 1))
    config = EngineConfig(
        device=DeviceConfig(float_activations=asked), kv=KVConfig(num_blocks=64, dtype="f16")
    )
    device = DeviceFacts(
        backend="native", isa="avx512", threads=1, reasons=(), memory_bytes=4 << 30, memory_reason=""
    )
    resolved = resolve(config, build.model_facts(config, checkpoint), device)
    model = build.step_model(resolved, checkpoint, 1 << 20)
    assert model.limits == limits
    assert model.peak_ops_s == StepMeter(model).gauges()["limit_operations"] == getattr(limits, rate)
