"""Connections that say nothing, or say it slowly; settings of the server that cannot be meant."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import httpx
import pytest

from headrace.base.clock import unix_s
from headrace.base.config import ServeConfig
from headrace.base.errors import ConfigError
from headrace.engine.outputs import ChoiceDelta, EngineHealth
from headrace.serve import connection, limits
from headrace.serve.address import bind
from tests.serve.fake import FakeLLM, LiveServer, Seen, hello, word

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"


def ends_within(raw: socket.socket, seconds: float, drip: bytes) -> float:
    """Seconds until the server closes the connection, while a byte comes now and then."""
    begin = time.monotonic()
    raw.settimeout(0.05)
    while time.monotonic() - begin < seconds:
        try:
            raw.sendall(drip)
            if raw.recv(4096) == b"":
                return time.monotonic() - begin
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - begin
    pytest.fail(f"the connection is still open after {seconds} s")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"])
def test_a_refusal_before_the_body_was_read_arrives_whole(path: str) -> None:
    with LiveServer(FakeLLM(hello)) as live:
        live.llm.state = EngineHealth(alive=False, making_progress=False, ready=False, reason="it was killed")
        host, port = live.url.removeprefix("http://").split(":")
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {1 << 20}\r\n\r\n"
        for _ in range(10):
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                raw.sendall(head.encode() + b" " * (1 << 20))
                answer = b"".join(iter(lambda: raw.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"it was killed" in answer


def test_a_refusal_does_not_wait_long_for_the_rest_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISCARD_S", 0.2)
    with LiveServer(FakeLLM(hello)) as live:
        live.llm.state = EngineHealth(alive=False, making_progress=False, ready=False, reason="it was killed")
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(HEAD + b"Connection: close\r\n\r\n{")
            assert raw.recv(4096).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("opening", "drip"), [(b"", b""), (HEAD + b"X-Slow: ", b"a"), (HEAD + b"\r\n{", b" ")]
)
def test_slow_clients_are_cut_off(monkeypatch: pytest.MonkeyPatch, opening: bytes, drip: bytes) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0)
    monkeypatch.setattr(limits, "BODY_TIMEOUT_S", 0.3)
    with LiveServer(FakeLLM(hello)) as live:
        host, port = live.url[7:].split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(opening)
            assert ends_within(raw, 5, drip) > 0.2


async def endless(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    while True:
        yield (word("x" * 4096),)
        await asyncio.sleep(0)


def unread(live: LiveServer, body: bytes) -> socket.socket:
    """A connection whose client sends a request and reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = live.url[7:].split(":")
    raw.connect((host, int(port)))
    raw.sendall(HEAD.replace(b"1000", str(len(body)).encode()) + b"\r\n" + body)
    return raw


def test_a_client_that_never_reads_its_stream_is_cut_and_its_request_ended() -> None:
    with LiveServer(FakeLLM(endless), write_timeout_s=0.5) as live:
        begin = time.monotonic()
        with unread(live, b'{"prompt": "x", "stream": true}'):
            while not (live.llm.seen and live.llm.seen[0].closed):
                assert time.monotonic() - begin < 10
                time.sleep(0.05)
        assert time.monotonic() - begin > 0.4
        level = live.state.metrics.waits.unread
        assert 0.4 < level.seconds < 10
        before = level.seconds
        time.sleep(0.05)
        assert level.seconds == before  # who is cut is waited for no longer


def test_a_client_that_reads_slowly_gets_everything() -> None:
    async def long(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        for _ in range(400):
            yield (word("x" * 4096),)
            await asyncio.sleep(0)
        yield (ChoiceDelta(index=0, finish_reason="stop"),)

    with LiveServer(FakeLLM(long), write_timeout_s=1.5) as live:
        got = b""
        with unread(live, b'{"prompt": "x", "stream": true}') as raw:
            while not got.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
                part = raw.recv(1 << 16)
                assert part, "the server gave up on it"
                got += part
                time.sleep(0.01)
        assert got.count(b"data: ") >= 400


def test_requests_of_one_send_are_dated_with_the_second_in_which_each_began() -> None:
    async def late(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        await asyncio.sleep(1.2)
        yield (ChoiceDelta(index=0, finish_reason="stop"),)

    with LiveServer(FakeLLM(late)) as live:
        host, port = live.url[7:].split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            first = HEAD.replace(b"1000", b"15") + b'\r\n{"prompt": "x"}'
            raw.sendall(first + b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            began_s = unix_s()
            answers = b"".join(iter(lambda: raw.recv(4096), b""))
            ended_s = unix_s()
    assert answers.count(b"HTTP/1.1 200 ") == 2, answers
    dates = [
        parsedate_to_datetime(d.decode()).timestamp() for d in re.findall(rb"(?m)^date: (.*?)\r$", answers)
    ]
    assert len(dates) == 2
    assert -1.5 < dates[0] - began_s < 0.5
    assert -1.5 < dates[1] - ended_s <= 0
    assert dates[1] > dates[0]


def test_a_connection_may_be_used_again_and_stay_idle_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.4)
    with LiveServer(FakeLLM(hello)) as live, httpx.Client(base_url=live.url) as client:
        for _ in range(3):
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
            time.sleep(0.3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65536},
        {"port": -1},
        {"port": 99999},
        {"drain_s": -1.0},
        {"write_timeout_s": 0.0},
        {"max_body_bytes": 0},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"serve\.{name} must"):
        bind(ServeConfig(**({"port": 0} | wrong)))
