"""What the doctor expects of a technique: numbers of the cost model, computed by hand."""

import json
from pathlib import Path

import pytest

from headrace.engine.doctor.diagnosis import as_json, diagnose
from headrace.engine.doctor.finding import Patient
from headrace.engine.doctor.gains import DecodeStep, of_cores
from headrace.engine.doctor.trace import Scrape, Trace

RECORDED = Path(__file__).parents[1] / "golden/doctor_traces.json"
DECODING = {
    'headrace_phase_step_seconds_total{phase="decode"}': 9.5,
    'headrace_phase_steps_total{phase="decode"}': 100.0,
    'headrace_phase_step_tokens_total{phase="decode"}': 200.0,
    'headrace_memory_roof_seconds_total{phase="decode"}': 7.0,
    'headrace_step_bytes_read_total{phase="decode"}': 100 * 5e8,
    'headrace_step_operations_total{phase="decode"}': 100 * 2e9,
}
LIMITS = {
    "headrace_limit_read_bytes_per_second": 1e10,
    "headrace_limit_operations_per_second": 1e12,
    "headrace_weight_bytes": 4e8,
}
"""A step: 40 ms of weights, 10 ms of keys, 2 ms of arithmetic, two rows."""
OVERHEAD_S, ROW_S = 0.8e-3, 40e-6


def trace_of(counters, gauges=LIMITS, seconds=10.0):
    return Trace([Scrape(0.0, dict.fromkeys(counters, 0.0) | gauges), Scrape(seconds, counters | gauges)])


def gain_of(name, counters, gauges=LIMITS):
    found = as_json(diagnose(Patient(trace=trace_of(counters, gauges))))["findings"]
    return next(finding["expected_gain"] for finding in found if finding["name"] == name)


def test_a_step_is_put_together_by_hand():
    step = DecodeStep.of(trace_of(DECODING))
    assert (step.rows, step.weight_s, step.key_s, step.operation_s) == pytest.approx((2.0, 0.04, 0.01, 0.002))
    now = OVERHEAD_S + 2 * ROW_S + 1.3 * 0.04 + 1.5 * 0.01
    assert step.seconds() == pytest.approx(now)
    twice = OVERHEAD_S + 4 * ROW_S + 1.3 * 0.04 + 1.5 * 0.02
    assert step.of_rows(2.0) == pytest.approx(2 * now / twice)
    halved = OVERHEAD_S + 2 * ROW_S + 1.3 * 0.02 + 1.5 * 0.01
    assert step.of_weights(0.5) == pytest.approx(now / halved)
    many = OVERHEAD_S + 40 * ROW_S + 2.2 * 0.04 + 1.5 * 0.2  # arithmetic bounds twenty times the rows
    assert step.of_rows(20.0) == pytest.approx(20 * now / many)


def test_weights_that_are_not_all_read_leave_nothing_for_keys():
    step = DecodeStep.of(trace_of(DECODING, LIMITS | {"headrace_weight_bytes": 6e8}))
    assert (step.weight_s, step.key_s) == pytest.approx((0.05, 0.0))


@pytest.mark.parametrize("missing", [*LIMITS, 'headrace_phase_steps_total{phase="decode"}'])
def test_what_a_server_does_not_tell_has_no_number(missing):
    counters = {name: value for name, value in DECODING.items() if name != missing}
    gauges = {name: value for name, value in LIMITS.items() if name != missing}
    assert DecodeStep.of(trace_of(counters, gauges)) is None


def test_memory_bandwidth_tells_rows_weights_and_how_drafts_are_measured():
    ablate = "drafts: headrace bench ablate MODEL --only speculation measures it"
    rows = "twice the rows: 1.6 times the tokens a second; weights of half the bytes: 1.6 times"
    assert gain_of("memory bandwidth", DECODING) == f"{rows}; {ablate}"
    drafting = {"headrace_spec_decode_num_drafts_total": 50.0}
    faster = LIMITS | {"headrace_spec_decode_speedup": 1.42}
    assert gain_of("memory bandwidth", DECODING | drafting, faster) == f"{rows}; drafts: 1.4 times already"
    assert gain_of("memory bandwidth", DECODING, {}) == (
        f"more rows: headrace bench serve --ramp measures it; {ablate}"
    )


def test_a_queue_gains_what_its_rows_would():
    full = {"headrace_num_requests_running": 2.0, "headrace_num_requests_waiting": 6.0}
    full |= {"headrace_num_slots": 2.0}
    # four times the rows: 4 * 67.88 ms / (0.8 + 8 * 0.04 + 52 + 60 ms)
    told = "with all of them running up to {} times the tokens a second"
    assert gain_of("queue/admission", DECODING, LIMITS | full) == told.format("2.4")
    assert gain_of("queue/admission", DECODING, full) == told.format("2.0")


def test_more_cores_shorten_arithmetic_alone():
    assert of_cores(1.0, 2.0) == 2.0
    assert of_cores(0.0, 2.0) == 1.0
    assert of_cores(0.5, 4.0) == pytest.approx(1.6)
    computing = {
        'headrace_phase_step_seconds_total{phase="prefill"}': 9.0,
        'headrace_phase_steps_total{phase="prefill"}': 30.0,
        'headrace_phase_step_tokens_total{phase="prefill"}': 12_000.0,
        'headrace_compute_roof_seconds_total{phase="prefill"}': 4.0,
    }
    # nine tenths of the time, all of it bound by arithmetic: 1 / (1 - 0.45); 9 s of 12,000 tokens
    assert gain_of("compute", computing) == (
        "twice the cores: 1.8 times the tokens a second; "
        "each 100 prompt tokens from the prefix cache: 75 ms less"
    )


def test_a_full_http_process_gains_until_the_engine_is_full():
    busy = {"process_cpu_seconds_total": 9.5, "headrace_engine_loop_seconds_total": 8.0}
    told = "two servers behind one address: up to {} times the requests a second, "
    told += "by when this engine would be full"
    assert gain_of("tokenization/grammar", busy) == told.format("1.2")
    idle = busy | {"headrace_engine_loop_seconds_total": 1.5}
    assert gain_of("tokenization/grammar", idle) == told.format("2.0")


def test_two_rows_gain_what_recorded_servers_show():
    """Of one user and of two (`benchmarks/doctor`): tokens a second, against the cost model on one."""
    kept = json.loads(RECORDED.read_text())
    rates = {1: [], 2: []}
    predicted = []
    for cause, seconds, *values in kept["runs"]:
        if cause != "memory bandwidth":
            continue
        now = dict(zip(kept["names"], values, strict=True))
        tokens = now['headrace_phase_step_tokens_total{phase="decode"}']
        users = round(tokens / now['headrace_phase_steps_total{phase="decode"}'])
        rates[users].append(tokens / seconds)
        if users == 1:
            counters = {name: value for name, value in now.items() if "_total" in name}
            gauges = {name: value for name, value in now.items() if "_total" not in name}
            # the recorded model's weights are all that a first step reads
            gauges["headrace_weight_bytes"] = 4.857e8
            predicted.append(DecodeStep.of(trace_of(counters, gauges, seconds)).of_rows(2.0))
    measured = (sum(rates[2]) / len(rates[2])) / (sum(rates[1]) / len(rates[1]))
    assert predicted
    assert max(abs(p / measured - 1.0) for p in predicted) < 0.1
