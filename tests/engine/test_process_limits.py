"""The engine process in trouble: it hangs while it loads, is stopped amid work, fails under a request."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from threading import Event as Flag

import pytest

from headrace.base.clock import now_s
from headrace.base.config import WatchConfig
from headrace.base.errors import EngineDeadError
from headrace.base.messages import AddGroup, AskPicture, AskStats, AskTimelines, Finish
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.compute.weights.packed.cache import packed_files
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.llm import LLM
from headrace.engine.process import remote
from headrace.engine.process.ipc import Channel
from headrace.engine.process.remote import RemoteClient
from headrace.engine.process.spawn import Spawned, spawn
from tests.engine.test_process import PARAMS, config, gather, is_alive, until

LONG = replace(PARAMS, max_tokens=150, min_tokens=150)


def spawn_hanging() -> Spawned:
    """A process that never says anything, like an engine that hangs while it loads."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(100)"], pass_fds=(theirs.fileno(),)
        )
    return Spawned(process, ours)


async def test_op2_a_restart_that_hangs_while_it_loads_is_ended_and_tried_again(monkeypatch):
    llm = await AsyncLLM.start(replace(config(), watch=WatchConfig(load_s=20.0)))
    hung, reasons = [], set()

    def spawn_bad_then_good() -> Spawned:
        if len(hung) == 2:
            llm.client._limits = WatchConfig(load_s=20.0)
            return spawn()
        hung.append(spawn_hanging())
        return hung[-1]

    monkeypatch.setattr(remote, "spawn", spawn_bad_then_good)
    try:
        llm.client._limits = WatchConfig(load_s=0.4)
        os.kill(llm.client.process_id, signal.SIGKILL)
        await until(lambda: not llm.health().alive, 5)
        with pytest.raises(EngineDeadError):
            await gather(llm, [5], PARAMS)
        async with asyncio.timeout(20):
            while not llm.health().ready:
                assert not llm.health().alive
                reasons.add(llm.health().reason)
                await asyncio.sleep(0.02)
        assert any("not loaded the model after 0.4 s" in r and "--load-s" in r for r in reasons), reasons
        assert not any(is_alive(s.process.pid) for s in hung)
        assert llm.num_restarts == 1
        assert len(await gather(llm, [5, 6, 7], PARAMS)) == 2
    finally:
        await llm.close()


def test_a_first_start_that_hangs_fails_with_the_bound():
    client = RemoteClient(watch=WatchConfig(load_s=0.3), spawned=spawn_hanging())
    began_s = now_s()
    with pytest.raises(EngineDeadError, match=r"not loaded the model after 0\.3 s.*--load-s"):
        client.load(config())
    assert now_s() - began_s < 5
    assert not is_alive(client.process_id)
    client.close()


def test_a_request_just_after_the_core_failed_gets_an_error_at_once(monkeypatch):
    """The thread that has told of its failure still frees the core: what comes then must not wait for it."""
    freed, failed = Flag(), Flag()
    with LLM(config(), threads=1) as llm:
        client = llm._frontend._client
        core, on_event = client._core, client._on_event

        def told(event):
            on_event(event)
            failed.set()

        monkeypatch.setattr(core, "step", lambda: 1 / 0)
        monkeypatch.setattr(core, "close", lambda real=core.close: (freed.wait(20), real()))
        client._on_event = told
        try:
            with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
                llm.generate([[5]], PARAMS, progress=False)
            assert failed.wait(5)
            assert client._thread.is_alive()
            began_s = now_s()
            with pytest.raises(EngineDeadError):
                llm.generate([[5]], PARAMS, progress=False)
            with pytest.raises(EngineDeadError):
                llm.stats()
            assert now_s() - began_s < 2
            assert not llm._frontend.health().alive
        finally:
            freed.set()


def _group(size: int) -> AddGroup:
    request = Request(request_id="long", prompt_ids=(1,) * size, sampling=SamplingParams())
    return AddGroup(requests=(request,))


async def test_op2_a_stopped_engine_never_holds_up_the_event_loop_and_goes_on_when_continued():
    llm = await AsyncLLM.start(replace(config(), watch=WatchConfig(silence_s=2.0)))
    pid = llm.client.process_id
    try:
        want = await gather(llm, [5, 6, 7], LONG)
        outputs = llm.generate([5, 6, 7], LONG, request_id="before")
        await anext(outputs)
        os.kill(pid, signal.SIGSTOP)
        stopped_s = now_s()
        late = asyncio.create_task(gather(llm, [5, 6, 7], LONG))
        await asyncio.sleep(0)  # more bytes than the socket holds, while health is still green
        for _ in range(40):
            began_s = now_s()
            llm.client.send(_group(50_000))
            assert now_s() - began_s < 0.5
        assert llm.client._channel.unsent_bytes > 1 << 20
        await until(lambda: not llm.health().alive, 4)
        assert now_s() - stopped_s < 3.0
        began_s = now_s()
        with pytest.raises(EngineDeadError, match="no sign of life"):
            await gather(llm, [9], PARAMS)
        with pytest.raises(EngineDeadError):
            await llm.stats()
        await outputs.aclose()  # its end is kept for the engine
        assert now_s() - began_s < 0.5
        os.kill(pid, signal.SIGCONT)
        await until(lambda: llm.health().ready, 5)
        assert await late == want
        assert await gather(llm, [5, 6, 7], LONG) == want
        assert llm.client.process_id == pid
        assert llm.client._channel.unsent_bytes == 0
        await until(lambda: llm.frontend.num_active == 0)
        gauges = (await llm.stats()).gauges
        assert gauges["running"] == gauges["waiting"] == gauges["blocks_held"] == 0
    finally:
        os.kill(pid, signal.SIGCONT)
        await llm.close()


async def test_closing_while_the_engine_is_stopped_and_its_socket_full_ends_it():
    client = await asyncio.to_thread(RemoteClient, config())
    client.start(lambda event: None)
    os.kill(client.process_id, signal.SIGSTOP)
    for _ in range(40):
        client.send(_group(50_000))
    await asyncio.to_thread(client.close)
    assert not is_alive(client.process_id)


def test_messages_to_an_end_that_does_not_read_keep_their_order_and_are_bounded(monkeypatch):
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours), Channel(theirs)
    names = [(str(i) * 1000,) for i in range(2000)]
    for name in names:
        sender.post(Finish(request_ids=name, reason=FinishReason.STOP))
    assert sender.unsent_bytes > 1 << 20
    monkeypatch.setattr(remote, "MAX_UNSENT_BYTES", 1 << 20)
    client = RemoteClient.__new__(RemoteClient)
    client._channel, client._beat, client._beat_s = sender, remote.Beat(steps=0, has_work=False), now_s()
    client._limits = WatchConfig()
    questions = (AskStats(ask_id=1), AskPicture(ask_id=2), AskTimelines(ask_id=3, request_ids=("x",)))
    for question in questions:
        with pytest.raises(EngineDeadError, match="takes no more requests"):
            client.send(question)
    client._beat_s -= 2 * client._limits.silence_s
    for question in questions:
        with pytest.raises(EngineDeadError, match="no sign of life"):
            client.send(question)
    client.send(Finish(request_ids=("last",), reason=FinishReason.ABORT))
    assert [receiver.receive().request_ids for _ in names] == names
    assert receiver.receive().request_ids == ("last",)
    receiver.close()
    with pytest.raises(EngineDeadError, match="gone"):
        sender.post(Finish(request_ids=("x",), reason=FinishReason.STOP))
    sender.close()


def test_a_sender_blocked_on_an_end_that_leaves_gives_up():
    ours, theirs = socket.socketpair()
    sender = Channel(ours)
    for _ in range(2000):
        sender.post(Finish(request_ids=("x" * 1000,), reason=FinishReason.STOP))
    assert sender.unsent_bytes > 0
    theirs.close()
    asyncio.run(until(lambda: sender.unsent_bytes == 0, 5))
    with pytest.raises(EngineDeadError, match="gone"):
        sender.post(AskStats(ask_id=1))
    sender.close()


SLOW_WRITER = """
import os, sys, time
from headrace.compute.weights.packed import store
from headrace.engine.process.__main__ import main

real = store.PackedCache.write
store.PackedCache.write = lambda *given: (time.sleep(1.0), real(*given))
store.MIN_BYTES = 0
os._exit(main(sys.argv[1:]))
"""


def test_the_end_of_the_engine_process_waits_for_packed_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", SLOW_WRITER, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    client = RemoteClient(spawned=Spawned(process, ours))
    client.load(config())
    client.start(lambda event: None)
    client.close()
    assert process.returncode == 0
    (file,) = packed_files(tmp_path / "packed")
    assert file.is_whole


ENDED_BUT_BUSY = """
import socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
print("here", flush=True)
channel.recv(1)
channel.shutdown(socket.SHUT_RDWR)
time.sleep(1.5)
"""


@pytest.mark.parametrize(("keep_s", "status"), [(20.0, 0), (0.1, -signal.SIGKILL)])
def test_a_process_that_still_writes_files_gets_more_time_but_not_for_ever(keep_s, status, monkeypatch):
    monkeypatch.setattr(remote, "END_S", 0.5)
    monkeypatch.setattr(remote, "KEEP_S", keep_s)
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", ENDED_BUT_BUSY, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE)
    client = RemoteClient(spawned=Spawned(process, ours))
    client.start(lambda event: None)
    assert process.stdout.read(4) == b"here"
    client.close()
    assert process.returncode == status
    process.stdout.close()
