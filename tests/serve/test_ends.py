"""How a server ends or does not come up: half requests at TERM, a port taken meanwhile, files cut short."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from headrace.base.config import EngineConfig, ModelConfig, ServeConfig
from headrace.base.errors import AddressTakenError
from headrace.serve import server as module
from headrace.serve.address import bind
from headrace.serve.metrics import ServerMetrics
from headrace.serve.server import InFlight
from headrace.serve.state import Served
from tests.kit.engine import tiny_llama
from tests.serve.conftest import serving
from tests.serve.test_address import LINUX, another_program
from tests.serve.test_commands import run


def half(raw: socket.socket, url: str, path: str, *more: str) -> socket.socket:
    """Connect and send a request whose body does not become whole."""
    host, port = url.removeprefix("http://").split(":")
    raw.settimeout(15)
    raw.connect((host, int(port)))
    lines = (f"POST {path} HTTP/1.1", "Host: x", "Content-Length: 1000", *more, "", '{"prompt": ')
    raw.sendall("\r\n".join(lines).encode())
    return raw


def test_term_answers_bodies_that_are_half_here_and_logs_no_fault() -> None:
    """Whatever waits for more of a request: an end in the shape of errors, in time, without a traceback."""
    asked = (
        ("/v1/completions",),
        ("/v1/chat/completions", "Connection: close"),
        ("/v1/messages", "Content-Type: application/json"),
        ("/nowhere", "Connection: close"),  # it is refused, but what is left of its body is waited for
    )
    with serving(tiny_llama(), "--drain-s", "0.3") as live, contextlib.ExitStack() as sockets:
        raws = [half(sockets.enter_context(socket.socket()), live.url, *more) for more in asked]
        time.sleep(0.2)
        began_s = time.monotonic()
        live.process.send_signal(signal.SIGTERM)
        answers = [b"".join(iter(lambda raw=raw: raw.recv(4096), b"")) for raw in raws]
        assert live.process.wait(10) == 0
        assert time.monotonic() - began_s < 5
        assert live.process.stdout is not None
        log = live.process.stdout.read()
    for (path, *_), answer in zip(asked, answers, strict=True):
        head, _, body = answer.partition(b"\r\n\r\n")
        error = json.loads(body)["error"]
        if path == "/nowhere":
            assert head.startswith(b"HTTP/1.1 404 ")
            continue
        assert head.startswith(b"HTTP/1.1 503 "), answer
        assert b"retry-after: 5" in head
        assert "waits no longer for the rest of the body" in error["message"]
        assert error["type"] == ("overloaded_error" if path == "/v1/messages" else "server_error")
    assert "Traceback" not in log, log
    assert len(log.splitlines()) <= 3, log


def test_a_request_that_would_not_end_is_cut_and_told_so() -> None:
    """Whatever waits where nobody thought of the server's end."""
    said: list[Any] = []

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    async def run() -> None:
        async def send(message: Any) -> None:
            said.append(message)

        async def receive() -> Any:
            raise AssertionError("nobody asks")

        flight = InFlight(stuck)
        scopes = [{"type": "http", "method": "GET", "path": path} for path in ("/begun", "/fresh")]
        tasks = [asyncio.create_task(flight(scope, receive, send)) for scope in scopes]
        await asyncio.sleep(0.01)
        assert not flight.idle.is_set()
        flight.bodies.end()
        await flight.cut(0.05)
        assert flight.idle.is_set()
        await asyncio.gather(*tasks)  # they ended as if by themselves

        leaving = asyncio.create_task(InFlight(stuck)(scopes[1], receive, send))
        await asyncio.sleep(0.01)
        leaving.cancel()  # without the server's end this is none of its business
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(run())
    assert [m["status"] for m in said if "status" in m] == [200, 503]
    assert b"shutting_down" in said[-1]["body"]


def test_term_ends_with_requests_that_nobody_thought_of(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    entered = asyncio.Event()

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await asyncio.sleep(60)

    class Engine:
        async def close(self, drain_s: float) -> None:
            assert drain_s == 0.0

    config, metrics = ServeConfig(drain_s=0.05), ServerMetrics()
    state = SimpleNamespace(config=config, metrics=metrics, batches=None, llm=Engine(), draining=False)

    async def run() -> bytes:
        sock, listens = bind(ServeConfig(port=0)), asyncio.Event()
        loop = module._Loop(stuck, cast("Served", state), listens.set)
        running = asyncio.create_task(loop.run(sock))
        await listens.wait()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"GET /fresh HTTP/1.1\r\nHost: x\r\n\r\n")
        await entered.wait()
        loop._on_signal()
        answer = await reader.read()
        writer.close()
        await running
        return answer

    async def in_time() -> bytes:
        async with asyncio.timeout(10):
            return await run()

    answer = asyncio.run(in_time())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"the server stopped before the request was answered" in answer
    assert state.draining
    assert [r.getMessage() for r in caplog.records if r.levelno >= 30] == [
        "GET '/fresh' was cut: the server stops"
    ]
    assert "Cancel" not in capsys.readouterr().err, "the HTTP library had to end it"


@LINUX
def test_a_server_whose_address_was_taken_while_it_loaded_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line with the remedy, no traceback, and no batch of anybody touched."""
    listened: list[socket.socket] = []
    real = module.AsyncLLM.start

    async def start(config: Any, spawned: Any) -> Any:
        other = another_program(config.serve.port)
        other.listen()
        listened.append(other)
        return await real(config, spawned)

    monkeypatch.setattr(module.AsyncLLM, "start", start)
    sock = bind(ServeConfig(port=0))
    port = sock.getsockname()[1]
    config = EngineConfig(
        model=ModelConfig(model=str(tiny_llama())), serve=ServeConfig(port=port, in_process=True)
    )
    with pytest.raises(AddressTakenError, match=f"cannot listen on 127.0.0.1:{port}"):
        asyncio.run(module.serve(config, lambda *_: pytest.fail("it is announced"), sock))
    assert sock.fileno() == -1
    listened[0].close()


def children(process_id: int) -> list[int]:
    tasks = Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def model_copy(folder: Path) -> Path:
    return Path(shutil.copytree(tiny_llama(), folder / "model"))


def test_an_engine_whose_model_file_was_cut_short_stays_down_and_says_why(tmp_path: Path) -> None:
    """Its process dies of the missing pages or of anything else; it must not come up with what is left."""
    model = model_copy(tmp_path)
    weights = next(model.glob("*.safetensors"))
    whole = weights.read_bytes()
    with serving(model, "--api-key", "k") as live:
        client = httpx.Client(base_url=live.url, headers={"authorization": "Bearer k"}, timeout=20)
        ask = {
            "prompt": [5, 6],
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        before = client.post("/v1/completions", json=ask).json()["choices"]
        os.truncate(weights, 1000)
        (engine,) = children(live.process.pid)
        os.kill(engine, signal.SIGBUS)

        def told() -> dict[str, Any]:
            return client.get("/health").json()

        end_s = time.monotonic() + 20
        while "could not be started again" not in str(told()):
            assert time.monotonic() < end_s, told()
            time.sleep(0.05)
        assert client.get("/health").status_code == 503
        assert weights.name in str(told())
        refused = client.post("/v1/completions", json=ask)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_unavailable"
        assert weights.name in refused.json()["error"]["message"]
        weights.write_bytes(whole)
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < end_s + 40, told()
            time.sleep(0.05)
        assert client.post("/v1/completions", json=ask).json()["choices"] == before


ASK = {"prompt": [5, 6], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_model_file_is_not_read_any_more_once_it_is_loaded(tmp_path: Path, backend: str) -> None:
    """Its pages are really gone here, and whoever still used the mapping would die of SIGBUS: nobody does, as
    weights, vectors and tables lie packed elsewhere."""
    model = model_copy(tmp_path)
    with serving(model, "--backend", backend) as live, httpx.Client(base_url=live.url, timeout=20) as client:
        before = client.post("/v1/completions", json=ASK).json()["choices"]
        os.truncate(next(model.glob("*.safetensors")), 1000)
        assert client.post("/v1/completions", json=ASK).json()["choices"] == before
        assert client.post("/v1/completions", json=ASK | {"prompt": list(range(3, 60))}).status_code == 200
        assert client.get("/health").status_code == 200


def test_packed_weights_that_are_cut_short_cost_a_restart_only(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a running server has mapped loses its pages: a real SIGBUS in the engine process, whose
    requests fail by that name; the next one finds the file broken and packs the weights anew."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    small = ("--max-model-len", "128", "--max-num-seqs", "2")
    with serving(smollm2_path, *small) as live:
        before = httpx.post(f"{live.url}/v1/completions", json=ASK, timeout=20).json()["choices"]
    (packed,) = (tmp_path / "packed").glob("*.packed")
    with (
        serving(smollm2_path, *small, "--weight-cache", "map") as live,
        httpx.Client(base_url=live.url, timeout=20) as client,
    ):
        (engine,) = children(live.process.pid)
        os.truncate(packed, 4 << 20)
        died = client.post("/v1/completions", json=ASK)
        assert died.status_code == 503
        assert "by signal SIGBUS (a model file was cut short" in died.json()["error"]["message"]
        end_s = time.monotonic() + 30
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < end_s, client.get("/health").text
            time.sleep(0.05)
        assert children(live.process.pid) != [engine]
        assert client.post("/v1/completions", json=ASK).json()["choices"] == before
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(30) == 0
        assert live.process.stdout is not None
        log = live.process.stdout.read()
        assert f"packed weights are made anew: {packed}" in log


def test_a_model_file_that_is_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    model = model_copy(tmp_path)
    weights = next(model.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)
    refused = run("serve", str(model), "--port", "0")
    assert refused.returncode == 1
    assert weights.name in refused.stderr
    assert "Traceback" not in refused.stderr
