"""`headrace bench` against a live server and over real sockets."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.serve.conftest import Live


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace.cli.main", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_live_server_is_measured(live_server: Live, tmp_path: Path) -> None:
    page = tmp_path / "load.html"
    ask = ("--num-requests", "6", "--input-tokens", "24", "--output-tokens", "8", "--concurrency", "3")
    done = bench("serve", "--url", live_server.url, *ask, "--json", "-", "--plot", str(page))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["sent"], facts["completed"], facts["failures"]) == (6, 6, {})
    assert facts["tokens"]["output"] == 6 * 8
    assert facts["tokens"]["are_reported"]
    assert facts["ttft_ms"]["count"] == facts["e2el_ms"]["count"] == 6
    for row in facts["requests"]:
        assert row["due_s"] <= row["sent_s"] < row["events_s"][0] <= row["events_s"][-1] <= row["end_s"]
        assert row["output_tokens"] == 8
    assert page.read_text().count("<svg") >= 5


def _with_interrupts() -> None:
    """Where the tests run in the background INT is ignored, and so it would be in their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_load_that_is_interrupted_tells_what_there_was(live_server: Live, tmp_path: Path) -> None:
    told = tmp_path / "load.json"
    ask = ("--num-requests", "4000", "--input-tokens", "8", "--output-tokens", "4", "--warmup", "0")
    command = [sys.executable, "-m", "headrace.cli.main", "bench", "serve", "--url", live_server.url, *ask]
    process = subprocess.Popen(
        [*command, "--json", str(told)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_with_interrupts,  # noqa: PLW1509 - nothing but this runs in it
    )
    threading.Event().wait(4.0)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Interrupted: requests that were under way are not among these." in text
    facts = json.loads(told.read_text())
    assert 0 < facts["completed"] == facts["sent"] == len(facts["requests"]) < 4000
    assert facts["failures"] == {}
    assert facts["seconds"] > 0.1


def test_what_the_server_refuses_ends_in_one_line(live_server: Live) -> None:
    done = bench("serve", "--url", live_server.url, "--extra", '{"nonsense": 1}')
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_engine_in_this_process_is_measured(smollm2_path: Path) -> None:
    ask = (str(smollm2_path), "--threads", "1", "--max-model-len", "256", "--repeat", "2", "--json", "-")
    shape = ("--input-tokens", "20", "--output-tokens", "4")
    quick = json.loads(bench("latency", *ask, *shape, "--batch-size", "2").stdout)
    assert [(r["requests"], r["prompt_tokens"], r["output_tokens"]) for r in quick["runs"]] == [
        (2, 40, 8)
    ] * 2
    many = json.loads(bench("throughput", *ask, *shape, "--num-requests", "3").stdout)
    assert [(r["requests"], r["output_tokens"]) for r in many["runs"]] == [(3, 12)] * 2
    assert many["output_tokens_per_s"]["min"] > 0
