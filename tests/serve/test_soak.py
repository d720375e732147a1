"""The soak of `benchmarks/soak`, short, with one kill; and that its checks see what they must."""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.peers.servers import headrace
from benchmarks.soak.asks import CHAT, MESSAGES, PATHS, Ask, Asks, broken
from benchmarks.soak.run import Found, Plan, soak
from benchmarks.soak.verdict import Check, growth, judge, record, table
from benchmarks.soak.watch import GIVE_UP_S, Kill, Life, Poll, Watcher
from benchmarks.soak.wire import Outcome, send

TIMED = ("kill to green", "kill to a new", "/health answers", "growth of")
"""Checks of speed and of long lives, for a quiet machine and a long run."""
PROGRAM = str(Path(sys.executable).with_name("headrace"))
FLAGS = ("--threads", "1", "--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "16")


@pytest.mark.slow
def test_everything_at_once_leaves_nothing_behind(smollm2_path: Path) -> None:
    server = headrace(smollm2_path, PROGRAM, FLAGS)
    try:
        found = asyncio.run(soak(server, Plan(seconds=20, streams=24, kills=1, settle_s=5)))
    finally:
        server.stop()
    checks = judge(found)
    told = table(found, checks)
    failed = [c.name for c in checks if not c.holds and not c.name.startswith(TIMED)]
    assert not failed, told
    assert sum(c.name.startswith(TIMED) for c in checks) == 5
    assert all(max(k.red, k.green, k.token) < GIVE_UP_S for k in found.watcher.kills), told
    assert len(found.outcomes) > 30, told
    assert record(found, checks)["counts"].keys() >= {"200"}


def test_the_shares_are_those_promised() -> None:
    asks = Asks(1)
    made = [asks.next() for _ in range(4000)]
    counts = Counter(a.kind for a in made)
    for kind, share in (("leaves", 0.10), ("invalid", 0.05), ("over-long", 0.02), ("canary", 0.03)):
        assert abs(counts[kind] / len(made) - share) < 0.015
    assert {a.path for a in made} == set(PATHS)
    assert all(a.refusals == (400,) for a in made if a.kind == "over-long")
    assert len(broken({"prompt": "x", "max_tokens": 1})) == 15


async def answered(ask: Ask, answer: bytes) -> Outcome:
    """What `send` makes of an answer of these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await send("127.0.0.1", server.sockets[0].getsockname()[1], ask)


def streamed(*data: str) -> bytes:
    lines = "".join(f"data: {d}\n\n" for d in data)
    return f"HTTP/1.1 200 OK\r\n\r\n{len(lines):x}\r\n{lines}\r\n0\r\n\r\n".encode()


def choice(reason: str | None, index: int = 0) -> str:
    shown = f'"{reason}"' if reason else "null"
    return f'{{"choices": [{{"index": {index}, "delta": {{"content": "a"}}, "finish_reason": {shown}}}]}}'


ERROR = '{"error": {"code": "engine_unavailable"}}'
STREAM = Ask(path=CHAT, body=b"{}", kind="stays", stream=True)
GOOD = streamed(choice(None), choice("stop"), "[DONE]")


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (GOOD, ""),
        (streamed(choice("error"), ERROR, "[DONE]"), ""),
        (streamed(choice(None), "[DONE]"), "finish reasons"),
        (streamed(choice("stop"), choice("stop"), "[DONE]"), "finish reasons"),
        (streamed(choice("stop"), choice("stop", 1), "[DONE]"), "finish reasons"),
        (streamed(ERROR, "[DONE]"), "finish reasons"),
        (streamed(choice("stop")), "0 ends"),
        (streamed(choice("stop"), "[DONE]", choice(None)), "after the end"),
        (GOOD.removesuffix(b"0\r\n\r\n"), "was cut"),
        (b"", "without an answer"),
        (b'HTTP/1.1 503 x\r\nContent-Length: 28\r\n\r\n{"error": {"code": "broken"}}', "28"),
        (b'HTTP/1.1 503 x\r\nContent-Length: 29\r\n\r\n{"error": {"code": "broken"}}', "without Retry-After"),
        (b'HTTP/1.1 500 x\r\nContent-Length: 29\r\n\r\n{"error": {"code": "broken"}}', "500 broken"),
        (
            b'HTTP/1.1 429 x\r\nRetry-After: 1\r\nContent-Length: 23\r\n\r\n{"error": {"type": "x"}}',
            "24 bytes",
        ),
        (b'HTTP/1.1 429 x\r\nRetry-After: 1\r\nContent-Length: 24\r\n\r\n{"error": {"type": "x"}}', ""),
    ],
)
async def test_what_is_wrong_with_an_answer_is_seen(answer: bytes, wrong: str) -> None:
    outcome = await answered(STREAM, answer)
    assert (wrong in outcome.wrong) if wrong else not outcome.wrong


async def test_an_accepted_bad_body_is_wrong() -> None:
    ask = Ask(path=MESSAGES, body=b"", kind="invalid", refusals=(400,))
    answer = b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"stop_reason": "end_turn"}'
    assert "not (400,)" in (await answered(ask, answer)).wrong


def outcome(**more) -> Outcome:
    return Outcome(**({"kind": "stays", "path": CHAT, "start": 10.0, "end": 11.0, "status": 200} | more))


def failing(outcomes: list[Outcome], polls: list[Poll] | None = None) -> set[str]:
    """Names of the checks that fail, of a run with a kill at 20 s that was over at 21 s."""
    watcher = Watcher("127.0.0.1", 1, 1)
    watcher.kills = [Kill(20.0, red=0.1, green=0.9, token=1.0)]
    watcher.polls = [Poll(10.0, 10.1, 200), *(polls or [])]
    watcher.lives[1] = Life("http", 0.0, [(float(t), 100.0) for t in range(100)])
    plan = Plan(seconds=100, streams=1, kills=1)
    found = Found(
        plan=plan, watcher=watcher, start=0.0, end=100.0, known="k", gauges={"kv_blocks_total": 9.0}
    )
    found.outcomes = [outcome(kind="canary", text="k"), *outcomes]
    return {c.name for c in judge(found) if not c.holds and isinstance(c, Check)}


def test_checks_hold_and_fail_for_their_own_reasons() -> None:
    dead = {"status": 503, "code": "engine_unavailable", "retry_after": 1.0}
    assert failing([outcome(**dead, start=20.5, end=20.6)]) == set()
    assert failing([outcome(**dead, start=21.5, end=21.6)]) == {"5xx outside kills"}
    late = "streams ended by an error, not in flight at a kill"
    assert failing([outcome(errors=1, start=19.0, end=20.1)]) == set()
    assert failing([outcome(errors=1, start=20.1, end=21.5)]) == {late}
    assert failing([outcome(wrong="x")]) == {"answers that end as they must"}
    assert failing([outcome(kind="canary", text="other")]) == {"equal requests, equal answers"}
    red = "/health not 200 while alive"
    assert failing([], [Poll(20.5, 20.6, 503)]) == set()
    assert failing([], [Poll(21.5, 21.6, 503)]) == {red}
    assert failing([], [Poll(30.0, 35.0, 0)]) == {red, "/health answers within, s"}


def test_growth_is_that_after_the_settling_time() -> None:
    life = Life("http", 0.0, [(float(t), 100.0 + min(t, 60)) for t in range(120)])
    assert growth(life, 60, 120) == pytest.approx(0.0)
    assert (growth(life, 10, 120) or 0.0) > 0.3
    assert growth(Life("engine", 100.0, life.samples[100:]), 60, 120) is None


def test_swings_are_no_growth_and_a_slow_rise_is() -> None:
    swinging = [(float(t), 150.0 if t % 20 < 6 else 190.0) for t in range(600)]
    assert growth(Life("http", 0.0, swinging), 60, 600) == pytest.approx(0.0)
    rising = [(t, m + t / 60) for t, m in swinging]  # 1 MiB a minute
    assert (growth(Life("http", 0.0, rising), 60, 600) or 0.0) > 0.02


def test_kills_leave_the_last_part_alone() -> None:
    moments = Plan(seconds=600, streams=1, kills=10).moments(time.monotonic())
    assert len(moments) == 10
    assert moments[-1] - moments[0] == pytest.approx(180)
    assert Plan(seconds=20, streams=1, kills=1).moments(0.0) == [3.0]
