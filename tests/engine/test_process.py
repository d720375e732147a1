"""The engine in its own process: same answers, typed messages, deaths, health, orphans."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from headrace.base.clock import now_s
from headrace.base.config import (
    DeviceConfig,
    EngineConfig,
    KVConfig,
    ModelConfig,
    ServeConfig,
    WatchConfig,
)
from headrace.base.env import child_environment
from headrace.base.errors import ConfigError, DeadlineError, EngineDeadError, OverloadError, RequestError
from headrace.base.faults import error_of, fault_of
from headrace.base.messages import Beat, Finish, Hold, News, Refused, Stats
from headrace.base.request import FinishReason, SamplingParams
from headrace.base.step import Delta, SequenceTiming, TokenLogprobs
from headrace.base.terms import Tenant, Terms, set_caller
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.llm import LLM
from headrace.engine.process.ipc import HEADER, KINDS, MAX_FRAME_BYTES, Channel, Start, decode, encode
from headrace.engine.process.remote import MAX_PAUSE_S, RemoteClient
from headrace.engine.watch import Watch
from tests.kit.engine import tiny_llama

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=20, n=2, logprobs=2, frequency_penalty=0.5)
PROMPTS = [[5, 6, 7], [8] * 30, [9, 10], [5, 6, 7]]


def config(**serve) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(tiny_llama())),
        device=DeviceConfig(threads=1),
        kv=KVConfig(num_blocks=64),
        serve=ServeConfig(**serve),
    )


async def gather(llm: AsyncLLM, prompt, params) -> list:
    found: dict[int, list] = {}
    async for output in llm.generate(prompt, params):
        for choice in output.choices:
            found.setdefault(choice.index, []).extend(zip(choice.token_ids, choice.logprobs, strict=True))
    return [found[i] for i in sorted(found)]


async def answers(llm: AsyncLLM) -> list:
    return await asyncio.gather(*(gather(llm, p, PARAMS) for p in PROMPTS))


async def until(condition, seconds=20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for sends no event
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_the_process_gives_what_the_thread_gives():
    remote = await AsyncLLM.start(config())
    local = await AsyncLLM.start(config(in_process=True))
    try:
        got, want = await answers(remote), await answers(local)
        assert got == want
        with LLM(config(), threads=2) as sync:
            results = sync.generate(PROMPTS, PARAMS)
        assert [[c.token_ids for c in r.choices] for r in results] == [
            [tuple(t for t, _ in c) for c in r] for r in want
        ]
        stats = await remote.stats()
        assert stats.gauges["blocks_held"] == 0
        assert remote.client.process_id != os.getpid()
        assert "engine process" in remote.phases
    finally:
        await remote.close()
        await local.close()


async def test_ends_of_iterators_abort_and_errors_come_first():
    llm = await AsyncLLM.start(config())
    try:
        for _ in range(20):
            outputs = llm.generate([5], replace(PARAMS, max_tokens=150))
            await anext(outputs)
            await outputs.aclose()
        llm.client.send(Hold(is_held=True))
        task = asyncio.create_task(gather(llm, [6], replace(PARAMS, max_tokens=150)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        llm.client.send(Hold(is_held=False))
        with pytest.raises(RequestError, match="token id"):
            await gather(llm, [10**6], PARAMS)
        assert await llm.abort("nobody") is False
        await until(lambda: llm.frontend.num_active == 0)
        gauges = (await llm.stats()).gauges
        assert gauges["running"] == gauges["waiting"] == gauges["blocks_held"] == 0
    finally:
        await llm.close()


async def test_abort_by_id_ends_the_stream_with_that_reason():
    llm = await AsyncLLM.start(config(in_process=True))
    try:
        reasons = []
        async for output in llm.generate(
            [5], replace(PARAMS, n=1, max_tokens=180, min_tokens=180), request_id="x"
        ):
            reasons += [c.finish_reason for c in output.choices]
            if len(reasons) == 2:
                assert await llm.abort("x")
        assert reasons[-1] == "abort"
        first = llm.generate([5], replace(PARAMS, max_tokens=150), request_id="y")
        await anext(first)
        with pytest.raises(RequestError, match="in use"):
            await gather_id(llm, "y")
        await first.aclose()
    finally:
        await llm.close()


async def gather_id(llm: AsyncLLM, name: str) -> None:
    async for _ in llm.generate([5], PARAMS, request_id=name):
        pass


async def test_a_dead_engine_fails_its_requests_turns_red_and_comes_back():
    llm = await AsyncLLM.start(config())
    try:
        want = await answers(llm)
        outputs = llm.generate([5], replace(PARAMS, max_tokens=180, min_tokens=180))
        await anext(outputs)
        victim = llm.client.process_id
        os.kill(victim, signal.SIGKILL)
        last = None
        async for output in outputs:
            last = output
        assert last.finished
        assert isinstance(last.error, EngineDeadError)
        assert {c.finish_reason for c in last.choices} == {"error"}
        health = llm.health()
        assert not health.alive
        assert "started again" in health.reason
        with pytest.raises(EngineDeadError):
            await gather(llm, [5], PARAMS)
        await until(lambda: llm.health().alive)
        assert llm.client.process_id != victim
        assert await answers(llm) == want
    finally:
        await llm.close()
    assert not is_alive(llm.client.process_id)


async def test_op2_health_follows_the_step_counter():
    llm = await AsyncLLM.start(config(in_process=True))
    llm.frontend._watch = Watch(llm.client.beat, stall_s=0.3)
    try:
        assert llm.health().making_progress
        llm.client.send(Hold(is_held=True))
        work = asyncio.create_task(gather(llm, [5], replace(PARAMS, max_tokens=150, min_tokens=150)))
        await until(lambda: not llm.health().making_progress, 5)
        assert llm.health().alive
        assert not llm.health().ready
        llm.client.send(Hold(is_held=False))
        await work
        assert llm.health().making_progress
    finally:
        await llm.close()


async def test_a_stuck_process_is_killed_and_started_again():
    client = await asyncio.to_thread(RemoteClient, config(), WatchConfig(restart_s=1.0))
    events = []
    client.start(events.append)
    try:
        first = client.process_id
        client.send(Hold(is_held=True))
        client.send(Finish(request_ids=("x",), reason=FinishReason.ABORT))
        os.kill(first, signal.SIGSTOP)
        client._beat = Beat(steps=1, has_work=True)
        await until(lambda: client.process_id != first and client.beat() is not None, 30)
        assert not is_alive(first)
    finally:
        await asyncio.to_thread(client.close)


async def test_op2_a_frozen_process_turns_health_red_and_is_replaced(caplog: pytest.LogCaptureFixture):
    watched = replace(config(), watch=WatchConfig(silence_s=1.0))
    llm = await AsyncLLM.start(watched)
    try:
        first = llm.client.process_id
        work = asyncio.create_task(gather(llm, [5], replace(PARAMS, max_tokens=150, min_tokens=150)))
        os.kill(first, signal.SIGSTOP)
        await until(lambda: not llm.health().alive, 3)
        assert "no sign of life" in llm.health().reason
        assert not llm.health().ready
        with pytest.raises(EngineDeadError):
            await work
        await until(lambda: llm.health().ready, 20)
        assert llm.client.process_id != first
        assert not is_alive(first)
        assert len(await gather(llm, [5, 6, 7], PARAMS)) == 2
        assert "ended by signal SIGKILL and is being started again" in caplog.text
        assert f"up again, as process {llm.client.process_id}" in caplog.text
    finally:
        await llm.close()


async def test_op2_a_busy_engine_is_a_healthy_one():
    llm = await AsyncLLM.start(config())
    seen = set()
    try:
        params = replace(PARAMS, max_tokens=40, min_tokens=40)
        work = [asyncio.create_task(gather(llm, [i, i + 1], params)) for i in range(60)]
        while not all(task.done() for task in work):
            seen.add((llm.health().alive, llm.health().making_progress, llm.health().ready))
            await asyncio.sleep(0.01)
        await asyncio.gather(*work)
    finally:
        await llm.close()
    assert seen == {(True, True, True)}


async def test_op2_an_engine_that_is_killed_again_and_again_comes_back_each_time(caplog):
    llm = await AsyncLLM.start(config())
    try:
        want = await answers(llm)
        for n in range(4):
            work = asyncio.create_task(gather(llm, [5], replace(PARAMS, max_tokens=150, min_tokens=150)))
            await asyncio.sleep(0.05)
            os.kill(llm.client.process_id, (signal.SIGKILL, signal.SIGBUS)[n % 2])
            await asyncio.wait([work])
            assert work.exception() is None or isinstance(work.exception(), EngineDeadError)
            await until(lambda n=n: llm.client.num_restarts == n + 1 and llm.health().ready, 20)
            assert await answers(llm) == want
        assert "by signal SIGBUS (a model file was cut short while it was in use" in caplog.text
    finally:
        await llm.close()


async def test_terms_cross_the_border_and_a_deadline_ends_a_request():
    llm = await AsyncLLM.start(config())

    async def late() -> None:
        set_caller(Terms(tenant=Tenant(name="a", max_queued=1, max_running=1), deadline_s=now_s() + 0.2))
        llm.client.send(Hold(is_held=True))
        work = asyncio.create_task(gather(llm, [5], replace(PARAMS, max_tokens=150, min_tokens=150)))
        await asyncio.sleep(0.3)
        llm.client.send(Hold(is_held=False))
        await work

    async def many() -> None:
        set_caller(Terms(tenant=Tenant(name="b", max_queued=1, max_running=1)))
        await asyncio.gather(*(gather(llm, [5], PARAMS) for _ in range(2)))

    try:
        with pytest.raises(DeadlineError):
            await asyncio.create_task(late())
        with pytest.raises(OverloadError, match="'b' wait, at most 1"):
            await asyncio.create_task(many())
        assert len(await gather(llm, [5, 6, 7], PARAMS)) == 2
        stats = await llm.stats()
        assert stats.counters["numeric_errors"] == 0  # a deadline is no fault of numbers
    finally:
        await llm.close()


async def test_requests_of_two_tenants_with_one_name_run_side_by_side():
    llm = await AsyncLLM.start(config(in_process=True))
    llm.client.send(Hold(is_held=True))

    async def ask(tenant: str, prompt: list[int]) -> tuple[list[int], str]:
        set_caller(Terms(tenant=Tenant(name=tenant)))
        drawn: list[int] = []
        async for output in llm.generate(prompt, replace(PARAMS, n=1), request_id="x"):
            drawn += [i for c in output.choices for i in c.token_ids]
            assert output.request_id == "x"
        found = await llm.timeline(tenant, "x")
        assert found is not None
        return drawn, found.request_id

    async def held() -> None:
        await until(lambda: llm.frontend.num_active == 2)
        assert await llm.timeline("carol", "x") is None
        llm.client.send(Hold(is_held=False))

    try:
        async with asyncio.timeout(20):
            one, other, _ = await asyncio.gather(ask("alice", [5]), ask("bob", [9, 8]), held())
            assert one != other
            assert [one, other] == [await ask("alice", [5]), await ask("bob", [9, 8])]
        assert one[1] == other[1] == "x"
    finally:
        await llm.close()


def test_a_process_that_keeps_dying_young_is_started_ever_later():
    client = RemoteClient()
    try:
        pauses = []
        for client._short_lives in range(19):
            pauses.append(client._pause_s())
        assert pauses == [0.0] * 11 + [2.0, 4.0, 8.0, 16.0] + [MAX_PAUSE_S] * 4
        client._short_lives = 5000  # days later: no power overflows
        assert client._pause_s() == MAX_PAUSE_S
    finally:
        client.close()


async def test_the_engine_process_runs_nothing_from_the_current_folder(tmp_path, monkeypatch):
    """A checkout without built kernels, or anybody's numpy.py, may lie where the server is started."""
    for name in ("headrace", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('taken from the current folder')")
    monkeypatch.chdir(tmp_path)
    llm = await AsyncLLM.start(config())
    try:
        assert len(await gather(llm, [5, 6, 7], PARAMS)) == 2
    finally:
        await llm.close()


def test_op3_the_engine_ends_when_its_parent_is_killed():
    code = (
        "import sys, time\n"
        "sys.path.insert(0, '.')\n"
        "from tests.engine.test_process import config\n"
        "from headrace.engine.process.remote import RemoteClient\n"
        "client = RemoteClient(config())\n"
        "print(client.process_id, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    asyncio.run(until(lambda: not is_alive(child), 5))


def test_op3_the_engine_ends_quietly_when_its_parent_leaves_while_it_loads():
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace.engine.process", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
            env=child_environment(),
        )
    ours.sendall(encode(Start(config=config())))
    ours.close()
    assert child.communicate(timeout=20)[1] == b""
    assert child.returncode == 0


async def test_op3_closing_while_the_engine_is_started_again_leaves_no_process(monkeypatch):
    started = []
    real = subprocess.Popen

    def popen(*args, **kwargs):
        started.append(real(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    for delay_s in (0.0, 0.002, 0.05, 0.4):
        client = await asyncio.to_thread(RemoteClient, config())
        client.start(lambda event: None)
        assert os.getpgid(client.process_id) != os.getpgid(0)
        os.kill(client.process_id, signal.SIGKILL)
        await asyncio.sleep(delay_s)
        await asyncio.to_thread(client.close)
    await asyncio.sleep(0.1)
    assert [p.pid for p in started if is_alive(p.pid)] == []


async def test_a_start_that_fails_says_why():
    broken = replace(config(), kv=KVConfig(num_blocks=64, block_size=0))
    with pytest.raises(ConfigError, match="block_size"):
        await asyncio.to_thread(RemoteClient, broken)


async def test_close_drains_then_cuts():
    llm = await AsyncLLM.start(config(in_process=True))
    llm.client.send(Hold(is_held=True))
    short = asyncio.create_task(gather(llm, [5], PARAMS))
    await asyncio.sleep(0.01)
    llm.client.send(Hold(is_held=False))
    closing = asyncio.create_task(llm.close(drain_s=20))
    await asyncio.sleep(0)
    assert len(await short) == 2
    await closing
    assert not llm.health().alive
    with pytest.raises(EngineDeadError):
        await gather(llm, [5], PARAMS)


MESSAGES = [
    Finish(request_ids=("a", "b"), reason=FinishReason.ABORT),
    Refused(request_ids=("a",), fault=fault_of(OverloadError("full", retry_after_s=2.5))),
    Stats(ask_id=1, counters={"a": 1.0}, gauges={}),
    News(
        step=3,
        deltas=(
            Delta(
                request_id="a",
                new_ids=(1, 2),
                logprobs=(
                    TokenLogprobs(token_id=1, logprob=-0.1, rank=1, top_ids=(1,), top_logprobs=(-0.1,)),
                )
                * 2,
                finish=FinishReason.STOP,
                stop_id=2,
                timing=SequenceTiming(
                    arrival_s=1.0,
                    first_scheduled_s=2.0,
                    first_token_s=3.0,
                    finished_s=4.0,
                    num_steps=1,
                    prefill_tokens=5,
                    waits=(("slots", 1.5),),
                ),
            ),
        ),
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_survive_the_border(message):
    frame = encode(message)
    length, kind = HEADER.unpack(frame[: HEADER.size])
    assert length == len(frame) - HEADER.size
    assert decode(kind, frame[HEADER.size :]) == message


def test_errors_survive_the_border():
    error = error_of(fault_of(OverloadError("full", retry_after_s=2.5)))
    assert (type(error), error.message, error.retry_after_s) == (OverloadError, "full", 2.5)
    error = error_of(fault_of(RequestError("bad", param="seed")))
    assert (type(error), error.param) == (RequestError, "seed")
    assert "KeyError" in error_of(fault_of(KeyError("x"))).message
    assert type(error_of(replace(fault_of(KeyError("x")), kind="Exception"))).__name__ == "HeadraceError"


@pytest.mark.parametrize(
    "frame",
    [
        HEADER.pack(MAX_FRAME_BYTES + 1, 1),
        HEADER.pack(0, len(KINDS)),
        HEADER.pack(3, 1) + b"abc",
        HEADER.pack(1, 2) + b"\x80",
    ],
)
def test_broken_frames_are_refused(frame):
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(frame)
        channel = Channel(ours)
        with pytest.raises(EngineDeadError):
            channel.receive()
        theirs.shutdown(socket.SHUT_WR)
        assert channel.receive() is None
        channel.close()
    with pytest.raises(EngineDeadError):
        channel.send(Hold(is_held=True))
