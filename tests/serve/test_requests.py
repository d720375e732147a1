"""Ending a request by its id, on every endpoint that generates."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import pytest

from headrace.base.clock import now_s
from headrace.base.config import AccessConfig, EngineConfig, ModelConfig, ServeConfig
from headrace.base.messages import Hold
from headrace.base.terms import Tenant, Terms, caller_terms, set_caller
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.outputs import ChoiceDelta
from headrace.serve.running import Running
from tests.kit.engine import tiny_llama
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


def test_keys_learn_nothing_of_each_others_names() -> None:
    """The same name at the same time on a real engine: each key runs, explains and ends its own."""
    config = EngineConfig(model=ModelConfig(model=str(tiny_llama())), serve=ServeConfig(in_process=True))
    llm = asyncio.run(AsyncLLM.start(config))
    ask: Any = {"prompt": [5, 6, 7], "max_tokens": 150, "ignore_eos": True, "request_id": "mine"}
    access = AccessConfig(api_key=("alice", "bob", "carol"))

    with LiveServer(cast("FakeLLM", llm), access) as live, ThreadPoolExecutor(2) as pool:

        def call(key: str, method: str, path: str, **more: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.request(method, live.url + path, headers=headers, timeout=20, **more)

        try:
            llm.client.send(Hold(is_held=True))
            asked = [pool.submit(call, k, "POST", "/v1/completions", json=ask) for k in ("alice", "bob")]
            end_s = now_s() + 10
            while llm.frontend.num_active < 2:
                assert now_s() < end_s, [a.result() for a in asked if a.done()]
            again = call("alice", "POST", "/v1/completions", json=ask)
            assert (again.status_code, again.json()["error"]["param"]) == (400, "request_id")
            assert "\x1f" not in again.text
            for method, path in (("DELETE", "/v1/requests/mine"), ("GET", "/v1/requests/mine/timeline")):
                assert call("carol", method, path).status_code == 404
            assert call("bob", "DELETE", "/v1/requests/mine").status_code == 200
            llm.client.send(Hold(is_held=False))
            ends = [answer.result().json()["choices"][0]["finish_reason"] for answer in asked]
            assert ends == ["length", "abort"]
            for key, parts in (("alice", {"prefill", "decode"}), ("bob", set[str]())):
                told = call(key, "GET", "/v1/requests/mine/timeline").json()
                assert told["id"] == asked[0].result().json()["id"]
                assert parts <= {part["name"] for part in told["parts"]}
            assert call("carol", "GET", "/v1/requests/mine/timeline").status_code == 404
        finally:
            llm.client.send(Hold(is_held=False))
            asyncio.run(llm.close())


def test_each_key_ends_its_own_request_of_an_id_and_the_first_of_it() -> None:
    ended: list[tuple[str, str]] = []

    class Aborts:
        async def abort(self, request_id: str) -> bool:
            ended.append((caller_terms().tenant.name, request_id))
            return True

    running = Running(cast("AsyncLLM", Aborts()))

    def as_(tenant: str) -> None:
        set_caller(Terms(tenant=Tenant(name=tenant)))

    def cancelled(tenant: str) -> bool:
        as_(tenant)
        return asyncio.run(running.cancel("chatcmpl-x"))

    as_("alice")
    try:
        with running.entered("chatcmpl-x", "chatcmpl-x"):
            with running.entered("chatcmpl-x", "chatcmpl-x"):  # the engine refuses it: nothing to end here
                assert not cancelled("bob")
                assert not ended
            as_("bob")
            with running.entered("chatcmpl-x", "chatcmpl-x"):
                assert cancelled("bob")
                assert ended == [("bob", "chatcmpl-x")]
            assert not cancelled("bob")
            assert cancelled("alice")
            assert ended[1:] == [("alice", "chatcmpl-x")]
        assert not cancelled("alice")
    finally:
        set_caller(Terms())
