"""The doctor on a live server: it reads metrics that exist, and names a planted bottleneck under load.

Who else has the cores here is not known, and a server that waits for them is told as that ("cores taken"). So
nothing is asserted here that shows only on a machine of its own: computing, reading memory, prompts that take
their share beside others, tokenization that fills a core, and a healthy server under load.
`python -m benchmarks.doctor` judges those on a quiet machine, and `tests/unit/test_doctor_traces.py` what it
recorded.
"""

import asyncio
import json
import random
import subprocess
import sys
from threading import Event, Thread

import httpx
import pytest

from benchmarks.doctor.causes import CAUSES, ids
from benchmarks.doctor.wires import Site, for_a_while, reading_late, sending_late
from benchmarks.overhead import tiny
from headrace.base.errors import DownloadError
from headrace.engine.doctor.diagnosis import as_json, diagnose
from headrace.engine.doctor.finding import Patient
from headrace.engine.doctor.machine import machine_of
from headrace.tools.doctor.scrape import watch
from tests.serve.conftest import serving
from tests.unit.test_doctor import COUNTERS, GAUGES

WHEN_USED = {"headrace_grammar_compilation_time_seconds_total"}
"""Told once there was a grammar."""


def ask(url, stop, number):
    body = {"model": "smollm2", "max_tokens": 48, "ignore_eos": True, "temperature": 0}
    while not stop.is_set():
        prompt = f"{number} Tell me about rivers."
        httpx.post(url + "/v1/completions", json={**body, "prompt": prompt}, timeout=60).raise_for_status()


def diagnose_under_load(url, clients, seconds):
    stop = Event()
    threads = [Thread(target=ask, args=(url, stop, i)) for i in range(clients)]
    for thread in threads:
        thread.start()
    try:
        return watch(url, None, seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_every_metric_that_checks_read_is_served(live_server):
    httpx.post(
        live_server.url + "/v1/completions",
        json={"model": "smollm2", "prompt": "Hi", "max_tokens": 4, "ignore_eos": True, "stream": True},
        timeout=60,
    )
    values = watch(live_server.url, None, 1.0).scrapes[-1].values
    assert (set(COUNTERS) | set(GAUGES)) - set(values) <= WHEN_USED


def test_a_quiet_server_is_idle(live_server):
    report = as_json(diagnose(Patient(trace=watch(live_server.url, None, 1.5))))
    assert report["bottleneck"] == "idle"


def test_too_few_slots_are_named(smollm2_path):
    flags = ("--max-num-seqs", "1", "--max-model-len", "512", "--served-model-name", "smollm2")
    with serving(smollm2_path, *flags) as live:
        trace = diagnose_under_load(live.url, 4, 4.0)
        report = as_json(diagnose(Patient(trace=trace)))
        assert report["bottleneck"] == "queue/admission", report
        assert report["evidence"]["slots"] == 1
        command = [sys.executable, "-m", "headrace.cli.main", "doctor", "--url", live.url, "--seconds", "1"]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=60)
        assert json.loads(done.stdout)["bottleneck"] == "idle"
        assert done.returncode in {0, 3}  # 3: this machine may deserve a warning


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory):
    flags = ("--served-model-name", "default", *CAUSES["host overhead"].flags)
    with serving(tiny(tmp_path_factory.mktemp("tiny")), *flags) as live:
        yield live


def named(live, load, settle_s=1.5, seconds=2.0):
    """What the doctor names while a load is on."""
    site = Site(int(live.url.rpartition(":")[2]), random.Random(1))

    async def look():
        await asyncio.sleep(settle_s)
        return await asyncio.to_thread(watch, live.url, None, seconds)

    trace = asyncio.run(for_a_while(site, load, look))
    assert not site.failed
    return as_json(diagnose(Patient(trace=trace)))


def test_a_model_that_is_mostly_bookkeeping_is_named(tiny_server):
    found = named(tiny_server, CAUSES["host overhead"].loads[0])
    assert found["bottleneck"] == "host overhead", found


@pytest.mark.parametrize(
    ("way", "most", "evidence"), [(reading_late, 1900, "readers"), (sending_late, 8, "bodies")]
)
def test_slow_clients_are_named(tiny_server, way, most, evidence):
    found = named(tiny_server, lambda site: way(site, 6, 64.0, ids(32, most)))
    assert found["bottleneck"] == "network/client", found
    assert found["evidence"][f"waiting_for_{evidence}"] > 3


def test_grammars_that_take_long_to_compile_are_named(smollm2_path):
    with serving(smollm2_path, "--max-model-len", "512", "--served-model-name", "default") as live:
        found = named(live, CAUSES["tokenization/grammar"].loads[1])
        assert found["bottleneck"] == "tokenization/grammar", found
        assert found["evidence"]["grammar_compile_share"] > 0.25


def test_a_full_pool_is_named(smollm2_path):
    cause = CAUSES["KV capacity"]
    with serving(smollm2_path, "--served-model-name", "default", *cause.flags) as live:
        found = named(live, cause.loads[0])
        assert found["bottleneck"] == "KV capacity", found


def test_what_was_asked_for_and_what_came_of_it_is_told(smollm2_path):
    with serving(smollm2_path, "--num-kv-blocks", "20") as live:  # and one thread, see there
        machine = machine_of()
        found = diagnose(Patient(trace=watch(live.url, None, 1.0), machine=machine))
        by_name = {f.name: f for f in found}
        why = "the KV pool holds 320 tokens; the model could use 8192"
        assert by_name["configuration"].evidence == {"model.max_model_len": f"asked auto, got 320: {why}"}
        assert ("compute threads" in by_name) == (machine.threads > 1)
        if machine.threads > 1:
            assert by_name["compute threads"].evidence["threads"] == 1.0
            assert by_name["compute threads"].evidence["fitting"] == machine.threads


def test_a_key_is_asked_for(smollm2_path):
    with serving(smollm2_path, "--max-model-len", "128", "--api-key", "right") as live:
        assert watch(live.url, "right", 1.0).seconds >= 1.0
        for key in (None, "wrong"):
            with pytest.raises(DownloadError, match="401"):
                watch(live.url, key, 1.0)
