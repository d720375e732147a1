"""Ending a request by its id, on every endpoint that generates."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from headrace.base.config import AccessConfig
from headrace.base.terms import Tenant, Terms, set_caller
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.outputs import ChoiceDelta
from headrace.serve.running import Running
from tests.serve.conftest import Live
from tests.serve.fake import FakeLLM, LiveServer, Seen, word

CHAT: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400}
LONG: Any = {"ignore_eos": True, "temperature": 0}
CASES = {
    "/v1/chat/completions": (CHAT | LONG, "chatcmpl-"),
    "/v1/completions": ({"prompt": ["a b c", "d e f"], "max_tokens": 400} | LONG, "cmpl-"),
    "/v1/messages": (CHAT, "msg_"),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 400}, "resp_"),
}


def ends(path: str, body: Any) -> list[Any]:
    """How an answer says that it ended."""
    if path == "/v1/messages":
        return [body["error"]["message"]]
    return [body["status"]] if path == "/v1/responses" else [c["finish_reason"] for c in body["choices"]]


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("has_prefix", [True, False])
def test_a_request_ends_by_its_id(live_server: Live, path: str, has_prefix: bool) -> None:
    body, prefix = CASES[path]
    name = f"end-{has_prefix}"
    told = (prefix if has_prefix else "") + name
    if "ignore_eos" not in body:  # these APIs have no such field: the model must not end by itself
        body = body | {"chat_template_kwargs": {}, "temperature": 1.5, "seed": 3}
    answers: list[httpx.Response] = []
    ask = body | {"request_id": name}
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(live_server.url + path, json=ask, timeout=60))
    )
    asking.start()
    with httpx.Client(base_url=live_server.url) as client:
        answer = client.delete(f"/v1/requests/{told}")
        while answer.status_code != 200:
            assert answer.status_code == 404
            assert asking.is_alive()
            answer = client.delete(f"/v1/requests/{told}")
        assert answer.json() == {"id": told, "object": "request", "cancelled": True}
        asking.join(20)
        assert client.delete(f"/v1/requests/{told}").status_code == 404
        assert client.post(f"/v1/requests/{told}/cancel").status_code == 404
    expected = {"/v1/messages": "the request was cancelled before its answer was complete"}
    expected |= {"/v1/responses": "cancelled"}
    assert set(ends(path, answers[0].json())) == {expected.get(path, "abort")}


class AbortableLLM(FakeLLM):
    """Knows a request once it runs; an aborted one ends at once."""

    async def abort(self, request_id: str) -> bool:
        for seen in self.seen:
            if seen.request_id == request_id and not seen.closed:
                await seen.kwargs["aborted"].put(True)
                return True
        return False


async def until_aborted(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    seen.kwargs["aborted"] = asyncio.Queue()
    yield (word("a"),)
    await seen.kwargs["aborted"].get()
    yield (ChoiceDelta(index=0, finish_reason="abort"),)


def test_only_the_key_that_sent_a_request_ends_it() -> None:
    with LiveServer(AbortableLLM(until_aborted), AccessConfig(api_key=("alice", "bob"))) as server:

        def as_(key: str) -> dict[str, str]:
            return {"authorization": f"Bearer {key}"}

        ask = CHAT | {"stream": True, "request_id": "a/1"}
        path = server.url + "/v1/requests/chatcmpl-a/1"
        url = server.url + "/v1/chat/completions"
        with httpx.stream("POST", url, json=ask, headers=as_("alice"), timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            theirs = httpx.delete(path, headers=as_("bob"))
            nobodys = httpx.delete(path + "x", headers=as_("bob"))
            assert theirs.status_code == nobodys.status_code == 404
            assert theirs.text == nobodys.text.replace("a/1x", "a/1")
            assert httpx.delete(path).status_code == 401
            assert httpx.post(path + "/cancel", headers=as_("alice")).status_code == 200
            assert any('"abort"' in line for line in lines)
        assert httpx.delete(path, headers=as_("alice")).status_code == 404


def test_a_second_request_with_the_same_id_ends_nobody_elses() -> None:
    class Aborts:
        async def abort(self, request_id: str) -> bool:
            return True

    running = Running(cast("AsyncLLM", Aborts()))

    def cancelled(tenant: str) -> bool:
        set_caller(Terms(tenant=Tenant(name=tenant)))
        return asyncio.run(running.cancel("chatcmpl-x"))

    set_caller(Terms(tenant=Tenant(name="alice")))
    try:
        with running.entered("chatcmpl-x", "chatcmpl-x"):
            set_caller(Terms(tenant=Tenant(name="bob")))
            with running.entered("chatcmpl-x", "chatcmpl-x"):
                assert not cancelled("bob")
            assert cancelled("alice")
        assert not cancelled("alice")
    finally:
        set_caller(Terms())
