"""The doctor: each check is silent on a healthy trace and speaks on its planted fault."""

import json
import random
from dataclasses import replace

import pytest

from headrace.base.errors import ConfigError, UnreachableError
from headrace.cli.main import main
from headrace.engine.doctor.diagnosis import CHECKS, as_json, as_text, diagnose, is_fine
from headrace.engine.doctor.finding import Patient
from headrace.engine.doctor.machine import Clock, Machine, machine_of
from headrace.engine.doctor.trace import Scrape, Trace
from headrace.tools.doctor.scrape import parse, read_trace, watch, write_trace

MACHINE = Machine(
    threads=8,
    allowed=16,
    quota=None,
    flags=frozenset({"avx2", "fma", "f16c"}),
    governor="performance",
    clock=Clock(now=3000.0, most=3500.0),
    huge_pages="madvise",
    numa_nodes=1,
)

COUNTERS = {
    "headrace_engine_loop_seconds_total": "loop",
    "headrace_program_seconds_total": "model_s",
    'headrace_phase_step_seconds_total{phase="decode"}': "decode_s",
    'headrace_phase_step_seconds_total{phase="prefill"}': "prefill_s",
    'headrace_phase_steps_total{phase="decode"}': "decode_steps",
    'headrace_phase_steps_total{phase="prefill"}': "prefill_steps",
    'headrace_phase_step_tokens_total{phase="decode"}': "decode_tokens",
    'headrace_phase_step_tokens_total{phase="prefill"}': "prefill_tokens",
    'headrace_memory_roof_seconds_total{phase="decode"}': "memory_s",
    'headrace_compute_roof_seconds_total{phase="prefill"}': "compute_s",
    'headrace_decode_row_seconds_total{phase="prefill"}': "stretched_s",
    "headrace_num_preemptions_total": "preemptions",
    "headrace_prompt_tokens_total": "prompt_tokens",
    "headrace_grammar_mask_seconds_total": "mask_s",
    "headrace_grammar_compilation_time_seconds_total": "compile_s",
    "process_cpu_seconds_total": "cpu_s",
    "headrace_http_request_seconds_total": "open_s",
    "headrace_http_body_wait_seconds_total": "body_s",
    "headrace_http_unread_seconds_total": "unread_s",
    "headrace_request_queue_time_seconds_sum": "queue_s",
    "headrace_request_queue_time_seconds_count": "queue_n",
    "headrace_numeric_errors_total": "nan",
}
GAUGES = {
    "headrace_num_requests_running": "running",
    "headrace_num_requests_waiting": "waiting",
    "headrace_num_slots": "slots",
    "headrace_kv_cache_usage_perc": "kv",
    "headrace_engine_alive": "alive",
    "headrace_engine_restarts": "restarts",
    "headrace_compute_threads": "threads",
    "headrace_engine_in_process": "in_process",
}
HEALTHY = {
    # a second: half the time steps, some of them with prompts
    "loop": 0.55,
    "decode_s": 0.40,
    "prefill_s": 0.10,
    "decode_steps": 40,
    "prefill_steps": 5,
    "decode_tokens": 120,
    "prefill_tokens": 600,
    "memory_s": 0.25,
    "compute_s": 0.06,
    "stretched_s": 0.2,
    "preemptions": 0,
    "prompt_tokens": 500,
    "mask_s": 0.0,
    "compile_s": 0.0,
    "cpu_s": 0.15,
    "open_s": 3.0,
    "body_s": 0.02,
    "unread_s": 0.1,
    "queue_s": 0.01,
    "queue_n": 4,
    "nan": 0,
    "running": 3,
    "waiting": 0,
    "slots": 64,
    "kv": 0.2,
    "alive": 1,
    "restarts": 0,
    "threads": 8,
    "in_process": 0,
}
FAULTS = {
    "idle": {
        **dict.fromkeys(("loop", "decode_s", "prefill_s", "memory_s", "compute_s"), 0.004),
        "running": 0.1,
        "open_s": 0.1,
        "decode_steps": 1,
    },
    "compute": {
        "loop": 0.97, "decode_s": 0.72, "prefill_s": 0.2, "memory_s": 0.05, "compute_s": 0.5,
        "running": 24, "decode_steps": 40, "prefill_steps": 4,
    },
    "memory bandwidth": {
        "loop": 0.96, "decode_s": 0.88, "prefill_s": 0.03, "memory_s": 0.7, "compute_s": 0.02,
        "decode_steps": 100, "decode_tokens": 110, "prefill_steps": 2, "running": 1,
    },
    "cores taken": {
        "loop": 0.96, "decode_s": 0.88, "prefill_s": 0.03, "memory_s": 0.22, "compute_s": 0.02,
        "decode_steps": 40, "decode_tokens": 44, "prefill_steps": 2, "running": 1,
    },
    "KV capacity": {
        "loop": 0.97, "decode_s": 0.8, "prefill_s": 0.1, "memory_s": 0.6, "compute_s": 0.1,
        "decode_steps": 60, "prefill_steps": 6, "kv": 0.97, "waiting": 12, "running": 9, "preemptions": 2,
    },
    "queue/admission": {
        "loop": 0.97, "decode_s": 0.86, "prefill_s": 0.05, "memory_s": 0.7, "compute_s": 0.03,
        "decode_steps": 90, "decode_tokens": 180, "prefill_steps": 3, "running": 2, "slots": 2, "waiting": 9,
        "queue_s": 40, "queue_n": 4,
    },
    "host overhead": {
        "loop": 0.97, "decode_s": 0.8, "prefill_s": 0.05, "decode_steps": 2000, "prefill_steps": 100,
        "model_s": 0.4,
    },
    "tokenization/grammar": {"loop": 0.9, "mask_s": 0.42, "decode_s": 0.42, "prefill_s": 0.06},
    "network/client": {"unread_s": 2.2},
    "prefill interference": {
        "loop": 0.97, "decode_s": 0.4, "prefill_s": 0.5, "decode_steps": 40, "prefill_steps": 5,
        "memory_s": 0.3, "compute_s": 0.25, "running": 6, "stretched_s": 2.9,
    },
}  # fmt: skip


def trace_of(values, seed=0, seconds=10, noise=0.1):
    """Scrapes twice a second: counters that grow at these rates, unevenly; gauges around these means."""
    rng = random.Random(seed)
    rates = {**HEALTHY, **values}
    rates.setdefault("model_s", 0.98 * (rates["decode_s"] + rates["prefill_s"]))
    now = {name: rng.uniform(0, 1e4) for name in COUNTERS}
    scrapes = []
    for i in range(2 * seconds + 1):
        gauges = {
            n: rates[key]
            * (
                1
                if key in {"slots", "alive", "threads", "restarts", "in_process"}
                else rng.uniform(1 - noise, 1 + noise)
            )
            for n, key in GAUGES.items()
        }
        scrapes.append(Scrape(100 + i / 2, {**now, **gauges}))
        now = {n: v + rates[COUNTERS[n]] / 2 * rng.uniform(1 - noise, 1 + noise) for n, v in now.items()}
    return Trace(scrapes)


def verdict(values, seed=0):
    return as_json(diagnose(Patient(trace=trace_of(values, seed), machine=MACHINE)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_bottleneck_is_named(fault, seed):
    assert verdict(FAULTS[fault], seed)["bottleneck"] == fault


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_server_is_healthy(seed):
    found = verdict({}, seed)
    assert found == {"bottleneck": "healthy", "evidence": {}, "next": None, "findings": []}


def test_the_next_one_is_told_with_its_remedy():
    found = verdict({**FAULTS["memory bandwidth"], **FAULTS["queue/admission"]})
    assert (found["bottleneck"], found["next"]) == ("queue/admission", "memory bandwidth")
    for finding in found["findings"]:
        assert finding["remedy"]
        assert finding["expected_gain"]
        assert finding["evidence"]


@pytest.mark.parametrize(("memory_s", "name"), [(0.38, "cores taken"), (0.56, "memory bandwidth")])
def test_memory_is_blamed_only_near_its_limit(memory_s, name):
    found = verdict({**FAULTS["memory bandwidth"], "memory_s": memory_s})
    assert found["bottleneck"] == name
    assert (found["evidence"]["of_limit"] < 0.5) == (name == "cores taken")


@pytest.mark.parametrize(("compute_s", "name"), [(0.05, "cores taken"), (0.3, "compute")])
def test_arithmetic_is_blamed_only_where_the_cores_do_some(compute_s, name):
    found = verdict({**FAULTS["compute"], "memory_s": 0.01, "compute_s": compute_s})
    assert (found["bottleneck"], found["next"]) == (name, None)


def test_a_busy_host_of_a_server_with_room_is_no_bottleneck():
    found = verdict({"loop": 0.3, "decode_s": 0.25, "prefill_s": 0.02, "model_s": 0.05})
    assert found["bottleneck"] == "healthy"


def test_prompts_that_leave_time_to_spare_interfere_with_nobody():
    spare = {"loop": 0.4, "decode_s": 0.15, "prefill_s": 0.2, "stretched_s": 0.9}
    assert verdict({**FAULTS["prefill interference"], **spare})["bottleneck"] == "healthy"


def test_prompts_that_fill_nearly_all_steps_still_interfere_with_those_who_decode():
    full = {"decode_s": 0.01, "prefill_s": 0.96, "decode_steps": 1, "prefill_steps": 6, "stretched_s": 5.6}
    assert verdict({**FAULTS["prefill interference"], **full})["bottleneck"] == "prefill interference"


@pytest.mark.parametrize(("tokens", "name"), [(1200, "prefill interference"), (60, "compute")])
def test_where_no_step_is_without_prompts_tokens_tell_how_far_they_stretch_it(tokens, name):
    all_prompts = {"decode_s": 0, "decode_steps": 0, "decode_tokens": 0, "prefill_s": 0.97}
    values = {"prefill_steps": 7, "prefill_tokens": tokens, "stretched_s": 5.6, "compute_s": 0.5}
    found = verdict({**FAULTS["prefill interference"], **all_prompts, **values, "running": 7})
    assert found["bottleneck"] == name
    if name != "compute":
        assert found["evidence"]["decode_step_ms"] == "none without prompts"
        assert "prefill interference" in as_text(diagnose(Patient(trace=trace_of({**all_prompts, **values}))))


def test_prompts_with_short_answers_in_a_long_queue_are_computing_not_interference():
    few = {"decode_s": 0.02, "prefill_s": 0.95, "decode_steps": 2, "prefill_steps": 6, "stretched_s": 1.6}
    found = verdict({**FAULTS["prefill interference"], **few, "running": 3, "waiting": 6, "compute_s": 0.5})
    assert found["bottleneck"] == "compute"


def test_a_full_house_that_computes_is_bounded_by_computing_not_by_slots():
    assert verdict({**FAULTS["compute"], "slots": 24, "waiting": 9})["bottleneck"] == "compute"


@pytest.mark.parametrize("fault", ["queue/admission", "KV capacity"])
def test_scrapes_between_two_requests_hide_no_queue(fault):
    slots = 1 if fault == "queue/admission" else 2
    values = {**FAULTS[fault], "running": 1, "slots": slots, "preemptions": 0}
    scrapes = list(trace_of(values, 0, noise=0.0).scrapes)
    for i in range(1, len(scrapes), 4):
        scrapes[i] = Scrape(scrapes[i].seconds, {**scrapes[i].values, "headrace_num_requests_running": 0.0})
    found = as_json(diagnose(Patient(trace=Trace(scrapes), machine=MACHINE)))
    assert (found["bottleneck"], found["evidence"]["requests_running"]) == (fault, 1.0)


def test_preemptions_alone_name_the_pool():
    assert verdict({"preemptions": 0.5})["bottleneck"] == "KV capacity"


@pytest.mark.parametrize("is_idle", [False, True])
def test_a_busy_http_process_is_named_and_its_clients_are_not(is_idle):
    found = verdict({**(FAULTS["idle"] if is_idle else {}), "cpu_s": 0.99, "open_s": 3.0, "body_s": 2.2})
    assert found["bottleneck"] == "tokenization/grammar"
    assert found["evidence"]["http_process_cores"] > 0.8
    assert found["next"] == ("idle" if is_idle else None)


def test_cpu_of_an_engine_in_the_http_process_is_not_taken_for_tokenization():
    found = verdict({"cpu_s": 1.9, "in_process": 1, "loop": 0.6})
    assert found["bottleneck"] == "healthy"


@pytest.mark.parametrize("way", ["body_s", "unread_s"])
def test_slow_clients_are_named_before_the_engine_that_waits_for_them(way):
    found = verdict({**FAULTS["idle"], "open_s": 4.0, way: 3.6})
    assert (found["bottleneck"], found["next"]) == ("network/client", "idle")
    remedy = found["findings"][0]["remedy"]
    assert ("come in slowly" in remedy) == (way == "body_s")
    assert ("read slower" in remedy) == (way == "unread_s")


def test_one_slow_client_now_and_then_is_nobodys_bottleneck():
    assert verdict({**FAULTS["idle"], "open_s": 0.3, "unread_s": 0.3})["bottleneck"] == "idle"


def test_answers_that_nobody_reads_after_their_requests_ended_count_too():
    assert verdict({"open_s": 0.1, "unread_s": 2.0})["bottleneck"] == "network/client"


@pytest.mark.parametrize(
    ("values", "name"), [({"nan": 1}, "numeric errors"), ({"alive": 0}, "engine restarts")]
)
def test_faults_of_the_server_are_warnings(values, name):
    findings = diagnose(Patient(trace=trace_of(values)))
    assert [(f.name, f.severity) for f in findings] == [(name, "warning")]
    assert not is_fine(findings)


def test_a_restart_is_seen_and_counters_that_begin_anew_do_not_shrink():
    first, last = (dict(trace_of({}).scrapes[i].values) for i in (0, -1))
    reset = dict.fromkeys(first, 0.0) | {"headrace_engine_restarts": 1.0, "headrace_engine_alive": 1.0}
    trace = Trace([Scrape(0, first | {"headrace_engine_restarts": 0.0}), Scrape(5, reset), Scrape(10, last)])
    assert all(trace.delta(name) >= 0 for name in COUNTERS)
    assert "engine restarts" in [f.name for f in diagnose(Patient(trace=trace))]


@pytest.mark.parametrize(
    ("change", "values", "name"),
    [
        ({}, {"threads": 12}, "compute threads"),
        ({}, {"threads": 2}, "compute threads"),
        ({"quota": 7.5}, {}, "compute threads"),
        ({"flags": frozenset({"sse2"})}, {}, "instruction sets"),
        ({"flags": frozenset({"asimd"})}, {}, "instruction sets"),
        ({"huge_pages": "never"}, {}, "huge pages"),
        ({"governor": "powersave"}, {}, "frequency"),
        ({"numa_nodes": 2}, {}, "memory nodes"),
    ],
)
def test_the_machine_is_looked_at(change, values, name):
    findings = diagnose(Patient(trace=trace_of(values), machine=replace(MACHINE, **change)))
    assert [f.name for f in findings] == [name]


TRY_IT = "headrace bench latency MODEL before and after measures it"
BUSY = {"loop": 0.97}
"""Of a server that is healthy else."""


@pytest.mark.parametrize(
    ("values", "governor", "clock", "gain"),
    [
        (BUSY, "performance", Clock(now=1500.0, most=3000.0), "up to 2.0 times the arithmetic"),
        (BUSY, "powersave", Clock(now=2000.0, most=3000.0), "up to 1.5 times the arithmetic"),
        (BUSY, "powersave", Clock(now=2000.0), TRY_IT),
        (
            {},
            "powersave",
            Clock(now=800.0, most=3000.0),
            TRY_IT,
        ),
        (BUSY, "performance", Clock(now=2200.0, most=3000.0), ""),
        (BUSY, "", Clock(now=2600.0), ""),
        ({}, "performance", Clock(now=800.0, most=3000.0), ""),  # it rests
    ],
)
def test_the_clock_is_told_beside_the_governor(values, governor, clock, gain):
    machine = replace(MACHINE, governor=governor, clock=clock)
    findings = diagnose(Patient(trace=trace_of(values), machine=machine))
    assert [f.expected_gain for f in findings if f.name == "frequency"] == ([gain] if gain else [])
    for finding in findings:
        if finding.name == "frequency":
            assert finding.evidence == {
                "governor": governor,
                "clock_mhz": clock.now,
                "most_mhz": clock.most or "not told",
            }
            assert ("cpupower" in finding.remedy) == (governor == "powersave")


def test_a_quota_is_named_where_it_is_why():
    few = replace(MACHINE, quota=2.0, threads=2)
    found = diagnose(Patient(trace=trace_of({"threads": 8}), machine=few))[0]
    assert "the cgroup's quota is 2 CPUs of 16 cores" in found.remedy
    assert found.evidence["cgroup_cpus"] == 2.0
    assert "quota" not in diagnose(Patient(trace=trace_of({"threads": 12}), machine=MACHINE))[0].remedy
    part = replace(MACHINE, quota=8.5)
    assert "cgroup quota of 8.5" in diagnose(Patient(trace=trace_of({}), machine=part))[0].remedy


def test_settings_that_fall_short_are_told_with_their_reason():
    text = (
        "# TYPE headrace_setting gauge\n"
        'headrace_setting{asked="auto",name="model.max_model_len",reason="a \\"pool\\" of",value="64"} 1\n'
        'headrace_setting{asked="8",name="schedule.max_num_seqs",reason="asked for",value="8"} 0\n'
    )
    first = trace_of({})
    told = Trace([replace(s, values={**s.values, **parse(text)}) for s in first.scrapes])
    findings = diagnose(Patient(trace=told))
    assert [(f.name, f.severity) for f in findings] == [("configuration", "info")]
    assert findings[0].evidence == {"model.max_model_len": 'asked auto, got 64: a "pool" of'}
    assert is_fine(findings)


def test_every_check_is_under_test():
    spoken = set(FAULTS) | {"numeric errors", "engine restarts", "compute threads", "instruction sets"}
    spoken |= {"drafts refused", "huge pages", "frequency", "memory nodes", "configuration"}
    assert len(spoken) == len(CHECKS.names())


def test_facts_of_a_machine_are_read_from_its_files(tmp_path):
    for name, text in {
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/node/node0/x": "",
        "sys/devices/system/node/node1/x": "",
        "proc/cpuinfo": "flags\t\t: fpu avx2 fma\ncpu MHz\t\t: 2596.13\ncpu MHz\t\t: 2600.5\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    machine = machine_of(tmp_path)
    assert (machine.huge_pages, machine.governor, machine.numa_nodes) == ("madvise", "powersave", 2)
    assert {"avx2", "fma"} <= machine.flags
    assert machine.clock == Clock(now=2596.13)  # as guests tell it
    for name, text in {
        "0/cpufreq/scaling_cur_freq": "2400000",
        "1/cpufreq/scaling_cur_freq": "1800000",
    }.items():
        path = tmp_path / f"sys/devices/system/cpu/cpu{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").write_text("3700000\n")
    assert machine_of(tmp_path).clock == Clock(now=1800.0, most=3700.0)
    (tmp_path / "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq").write_text("<unknown>\n")
    assert machine_of(tmp_path).clock == Clock(now=2400.0, most=3700.0)
    empty = machine_of(tmp_path / "nothing")
    assert empty.clock == Clock()
    assert (empty.huge_pages, empty.governor, empty.numa_nodes) == ("", "", 0)


def test_prometheus_text_is_read():
    text = (
        '# TYPE a counter\na_total 3\n# TYPE b gauge\nb{phase="x",k="1"} 2.5\n'
        '# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 4\nh_count 2\n'
    )
    assert parse(text) == {"a_total": 3, 'b{k="1",phase="x"}': 2.5, "h_sum": 4, "h_count": 2}


def test_a_trace_is_recorded_and_read(tmp_path, capsys):
    file = tmp_path / "t.jsonl"
    write_trace(file, trace_of(FAULTS["compute"]))
    assert read_trace(file).seconds == 10
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--trace", str(file), "--json"])
    assert ended.value.code == 3
    assert json.loads(capsys.readouterr().out)["bottleneck"] == "compute"
    write_trace(file, trace_of({}))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--trace", str(file)])
    assert ended.value.code == 0
    assert "bottleneck: healthy" in capsys.readouterr().out
    for text in ("", "{}", "nonsense", '{"seconds": 1, "values": {}}'):
        file.write_text(text)
        with pytest.raises(ConfigError):
            read_trace(file)


def test_words_name_the_proof():
    text = as_text(diagnose(Patient(trace=trace_of(FAULTS["compute"]))))
    assert "bottleneck: compute" in text
    assert "step_share 0.9" in text
    assert "remedy:" in text


def test_nobody_there_and_impossible_requests_are_said():
    with pytest.raises(UnreachableError, match=r"no server answers at http://127\.0\.0\.1:9 "):
        watch("http://127.0.0.1:9", None, 1.0)
    with pytest.raises(ConfigError, match="--url"):
        watch("localhost:8000", None, 1.0)
    with pytest.raises(ConfigError, match="--seconds"):
        watch("http://127.0.0.1:9", None, 0.1)
