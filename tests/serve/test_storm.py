"""A live server under clients that leave at any moment, and whose engine is killed: KV-2, OP-2, OP-3."""

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import Live

NEIGHBOUR = {
    "prompt": "The river ran through the old mill and",
    "max_tokens": 24,
    "seed": 11,
    "logprobs": 2,
    "ignore_eos": True,
}
KINDS: tuple[dict[str, Any], ...] = (
    {"prompt": "word " * 300},
    {"prompt": "word " * 5, "n": 3},
    {"prompt": "word " * 60, "logprobs": 3, "prompt_logprobs": 2, "echo": True},
    {"prompt": ["one", "two"]},
    {"prompt": "word " * 20, "request_id": "same"},
    {"prompt": "word", "stop": ["never in the text"], "bad_words": ["water"]},
    {"prompt": [7] * 480},
)


def gauges(url: str) -> dict[str, float]:
    lines = httpx.get(url + "/metrics").text.splitlines()
    wanted = ("headrace_num_requests_running", "headrace_num_requests_waiting", "headrace_kv_blocks_held")
    return {k: float(v) for k, _, v in (line.partition(" ") for line in lines) if k in wanted}


def until_idle(url: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while any(found := gauges(url).values()):
        assert time.monotonic() < end, found
        time.sleep(0.05)


async def leave_early(client: httpx.AsyncClient, url: str, rng: random.Random) -> int | None:
    """Send one of `KINDS` and go away after a random time; the status, if it came."""
    body = rng.choice(KINDS) | {"max_tokens": rng.choice([3, 300]), "stream": rng.random() < 0.6}
    status = None
    try:
        async with asyncio.timeout(rng.choice([0.001, 0.01, 0.05, 0.3, 1.0])):
            async with client.stream("POST", url + "/v1/completions", json=body) as response:
                status = response.status_code
                async for _ in response.aiter_bytes():
                    pass
    except TimeoutError:
        return status
    return status


async def storm(url: str, seed: int, count: int) -> tuple[list[int | None], list[Any]]:
    rng = random.Random(seed)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=200), timeout=60) as client:

        async def neighbour() -> Any:
            return (await client.post(url + "/v1/completions", json=NEIGHBOUR)).json()["choices"]

        leaving = [leave_early(client, url, rng) for _ in range(count)]
        staying = [neighbour() for _ in range(2)]
        found = await asyncio.gather(*leaving, *staying)
    return found[:count], found[count:]


def test_kv2_a_storm_of_disconnects_leaves_nothing_and_changes_no_neighbour(live_server: Live) -> None:
    """CVE-2026-9540: what a request held is given back, however it ends."""
    url, files = live_server.url, Path(f"/proc/{live_server.process.pid}/fd")
    alone = httpx.post(url + "/v1/completions", json=NEIGHBOUR, timeout=60).json()["choices"]
    until_idle(url)
    before = len(list(files.iterdir()))
    for seed in range(3):
        statuses, neighbours = asyncio.run(storm(url, seed, 50))
        assert set(statuses) <= {None, 200, 400}  # 400: an id in use
        assert neighbours == [alone, alone]
        until_idle(url)
    assert len(list(files.iterdir())) <= before + 2


def engine_of(live: Live) -> int:
    tasks = Path(f"/proc/{live.process.pid}/task").glob("*/children")
    (child,) = [int(c) for task in tasks for c in task.read_text().split()]
    return child


@pytest.mark.parametrize("n", [1, 3])
def test_op2_a_killed_engine_ends_streams_turns_red_and_comes_back(live_server: Live, n: int) -> None:
    url, victim = live_server.url, engine_of(live_server)
    alone = httpx.post(url + "/v1/completions", json=NEIGHBOUR, timeout=60).json()["choices"]
    body = {"prompt": "x", "max_tokens": 400, "n": n, "stream": True, "ignore_eos": True, "stop": ["zzqq"]}
    lines: list[str] = []
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line and not lines:
                os.kill(victim, signal.SIGKILL)
            lines += [line] if line else []
    assert lines[-1] == "data: [DONE]"
    sent = [json.loads(line[6:]) for line in lines[:-1]]
    assert sent[-1]["error"]["code"] == "engine_unavailable"
    ends = [c["finish_reason"] for e in sent[:-1] for c in e["choices"] if c["finish_reason"]]
    assert ends == ["error"] * n
    assert httpx.get(url + "/health").status_code == 503
    end = time.monotonic() + 20
    while httpx.get(url + "/health").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert engine_of(live_server) != victim
    assert httpx.post(url + "/v1/completions", json=NEIGHBOUR, timeout=60).json()["choices"] == alone
    until_idle(url)
