"""Refusals that arrive: with the body unread, of long lists, at the end of the server; the description."""

import asyncio
import socket
import time
from typing import Any, cast

import httpx
import pytest

from headrace.base.config import AccessConfig, ServeConfig
from headrace.base.errors import (
    AbortedError,
    CheckpointError,
    ContextLengthError,
    HeadraceError,
    RequestError,
)
from headrace.engine.async_llm import AsyncLLM
from headrace.serve import limits
from headrace.serve.faults import CancelledRequestError, DrainingError, unexpected
from headrace.serve.metrics import ServerMetrics
from headrace.serve.routes import openapi as openapi_route
from headrace.serve.routes.embeddings import Embedding
from headrace.serve.schema.embedding import EmbeddingBody
from headrace.serve.schema.responses import ResponsesBody
from headrace.serve.schema.sampling import validate
from headrace.serve.state import Served
from tests.serve.fake import FakeLLM, LiveServer, hello

BODY = b" " * (4 << 20)


def answer_while_sending(live: LiveServer, line: str, body: bytes = BODY) -> bytes:
    """The answer to a request whose body is sent after the server could have closed, and then only read."""
    host, port = live.url.removeprefix("http://").split(":")
    head = f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(BODY)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(head.encode())
        time.sleep(0.2)
        raw.sendall(body)
        found = b""
        while piece := raw.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /v1/chat/completions", b"401"),
        ("PUT /v1/chat/completions", b"401"),
        ("POST /nowhere", b"401"),
    ],
)
def test_a_client_that_still_sends_learns_that_it_has_no_key(line: str, status: bytes) -> None:
    """Closed with bytes unread the connection would be reset, and the answer lost."""
    with LiveServer(FakeLLM(hello), AccessConfig(api_key=("k",))) as live:
        assert answer_while_sending(live, line).split()[1] == status


@pytest.mark.parametrize(
    ("line", "status"), [("POST /nowhere", b"404"), ("PUT /v1/models", b"405"), ("POST /v1/batches", b"404")]
)
def test_a_client_that_still_sends_learns_that_there_is_no_such_path(line: str, status: bytes) -> None:
    with LiveServer(FakeLLM(hello)) as live:
        assert answer_while_sending(live, line).split()[1] == status


def test_a_body_that_never_comes_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISCARD_S", 0.3)
    with LiveServer(FakeLLM(hello)) as live:
        start = time.monotonic()
        assert answer_while_sending(live, "POST /nowhere", b"").split()[1] == b"404"
        assert 0.25 < time.monotonic() - start < 5


def test_the_description_of_the_api_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = openapi_route.describe

    def counted(*given: Any) -> dict[str, Any]:
        made.append(1)
        return real(*given)

    monkeypatch.setattr(openapi_route, "describe", counted)
    with LiveServer(FakeLLM(hello)) as live:
        first, second = (httpx.get(live.url + "/openapi.json").json() for _ in range(2))
    assert first == second
    assert len(made) == 1


def test_one_input_of_ids_is_as_long_as_the_context_allows() -> None:
    body = validate(EmbeddingBody, {"input": [5] * 5000})
    assert [len(found) for found in body.inputs(5000)] == [5000]
    with pytest.raises(ContextLengthError, match="input has 5000 tokens, the context limit is 4999"):
        body.inputs(4999)
    with pytest.raises(RequestError, match="input has 5000 entries, limit 2048"):
        validate(EmbeddingBody, {"input": ["a"] * 5000}).inputs(9)
    with pytest.raises(RequestError, match="input has 5000 entries, limit 4096"):
        validate(ResponsesBody, {"input": [5] * 5000})


@pytest.mark.parametrize(
    ("draining", "error", "status"), [(True, DrainingError, 503), (False, CancelledRequestError, 499)]
)
async def test_an_embedding_that_is_cut_says_by_whom(
    draining: bool, error: type[HeadraceError], status: int
) -> None:
    class Cut:
        async def embed(self, *_: Any, **__: Any) -> None:
            await asyncio.sleep(0)
            raise AbortedError("the request was aborted before its end")

    state = Served(llm=cast("AsyncLLM", Cut()), config=ServeConfig(), metrics=ServerMetrics())
    state.draining = draining
    with pytest.raises(error) as caught:
        await Embedding(state, EmbeddingBody(input="a"), "e").run(["a"])
    assert caught.value.http_status == status


def test_a_fault_of_the_server_is_in_its_log_and_a_refusal_is_not(caplog: pytest.LogCaptureFixture) -> None:
    """A tokenizer that fails on a text is raised on purpose, with status 500: its owner must hear of it."""
    broken = CheckpointError("the model's tokenizer fails on a text: index out of range")
    assert unexpected(broken) is broken
    assert [r.getMessage() for r in caplog.records] == [f"CheckpointError: {broken.message}"]
    caplog.clear()
    unexpected(RequestError("temperature is -1, it is at least 0", param="temperature"))
    assert not caplog.records
