"""A server that nobody asks anything: how often its processes wake up, and that it still knows the time."""

import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest

from headrace.base.clock import unix_s
from headrace.serve.connection import dated
from tests.kit.engine import tiny_llama
from tests.serve.conftest import serving
from tests.serve.test_ends import children

SECONDS = 4.0
MOST_A_SECOND = 4.0
"""Two of each process in a quiet one: a sign of life a second, and the look for it."""


def wakes(process_id: int) -> int:
    """How often any thread of a process went on after a wait."""
    states = [path.read_text() for path in Path(f"/proc/{process_id}/task").glob("*/status")]
    lines = [line for state in states for line in state.splitlines() if line.startswith("voluntary")]
    return sum(int(line.split()[1]) for line in lines)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_an_idle_server_hardly_wakes_up() -> None:
    with serving(tiny_llama()) as live:
        assert httpx.get(f"{live.url}/ready").status_code == 200
        time.sleep(2)  # what a start and a connection leave to do
        (engine,) = children(live.process.pid)
        both = (live.process.pid, engine)
        before = [wakes(process_id) for process_id in both]
        time.sleep(SECONDS)
        rates = [(wakes(p) - b) / SECONDS for p, b in zip(both, before, strict=True)]
        assert max(rates) <= MOST_A_SECOND, rates
        assert min(rates) > 0, "no signs of life"
        assert httpx.get(f"{live.url}/health").status_code == 200


def test_answers_are_dated_with_the_second_of_their_request() -> None:
    with serving(tiny_llama()) as live, httpx.Client(base_url=live.url) as client:
        times: list[float] = []
        for pause_s in (0.0, 1.2, 0.0):
            time.sleep(pause_s)
            answer = client.get("/ready")
            (date,) = answer.headers.get_list("date")
            times.append(parsedate_to_datetime(date).timestamp())
            assert -1.5 < times[-1] - unix_s() < 0.5
        assert times[1] > times[0]
    assert dated(0) == [(b"date", b"Thu, 01 Jan 1970 00:00:00 GMT")]
    assert dated(1) == [(b"date", b"Thu, 01 Jan 1970 00:00:01 GMT")]
