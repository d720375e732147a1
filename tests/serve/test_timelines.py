"""Where the time of a request went, asked over HTTP: while it runs, after its end, in its answer."""

import json
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.base.config import AccessConfig
from headrace.base.errors import EngineDeadError, HeadraceError
from headrace.base.metrics.timeline import PartName
from headrace.engine.outputs import ChoiceDelta
from tests.serve.conftest import Live
from tests.serve.fake import FakeLLM, LiveServer, Seen, hello, word
from tests.serve.test_commands import run

CHAT: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}


def get(live: Live, name: str) -> dict[str, Any]:
    answer = httpx.get(f"{live.url}/v1/requests/{name}/timeline", timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(body: dict[str, Any]) -> None:
    assert set(body) >= {"id", "e2e_s", "parts", "sentence"}
    assert sum(part["seconds"] for part in body["parts"]) == pytest.approx(body["e2e_s"], rel=0.02)
    assert {part["name"] for part in body["parts"]} <= set(PartName)
    assert all(part["seconds"] > 0 for part in body["parts"])


def test_some_dozens_of_live_requests_add_up(live_server: Live) -> None:
    """Against what the client measured, too: hardly more, as the server sees the end of sending later."""

    def ask(n: int) -> tuple[str, float]:
        path, prefix = [("/v1/chat/completions", "chatcmpl-"), ("/v1/completions", "cmpl-")][n % 2]
        body = CHAT if n % 2 == 0 else {"prompt": f"{n} and " * (1 + 3 * n), "max_tokens": 6}
        body = body | {"request_id": f"sum-{n}", "stream": n % 3 == 0, "n": 1 + n % 4 // 3}
        answer = httpx.post(live_server.url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return f"{prefix}sum-{n}", answer.elapsed.total_seconds()

    with ThreadPoolExecutor(12) as pool:
        asked = list(pool.map(ask, range(36)))
    names: set[str] = set()
    for name, seconds in asked:
        body = get(live_server, name)
        check(body)
        assert body["finished"] is True
        assert body["e2e_s"] <= 1.02 * seconds + 0.01
        names |= {part["name"] for part in body["parts"]}
    assert names >= {"tokenize", "queue", "prefill", "decode", "host", "stream_out"}


def test_a_running_request_tells_so_far_and_an_unknown_one_is_named(live_server: Live) -> None:
    ask = {"prompt": "a b c", "max_tokens": 400, "ignore_eos": True, "request_id": "so-far"}
    asking = threading.Thread(
        target=lambda: httpx.post(live_server.url + "/v1/completions", json=ask, timeout=60)
    )
    asking.start()
    seen: list[dict[str, Any]] = []
    while asking.is_alive() and len(seen) < 2:
        answer = httpx.get(live_server.url + "/v1/requests/so-far/timeline", timeout=20)
        if answer.status_code == 200 and not answer.json()["finished"]:
            seen.append(answer.json())
    for body in seen:
        check(body)
        assert body["sentence"].startswith("So far")
    assert len(seen) == 2
    assert seen[0]["e2e_s"] < seen[1]["e2e_s"]
    httpx.delete(live_server.url + "/v1/requests/so-far")
    asking.join(20)
    assert get(live_server, "cmpl-so-far")["finished"] is True
    unknown = httpx.get(live_server.url + "/v1/requests/nobody/timeline")
    assert unknown.status_code == 404
    assert "'nobody'" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_timings_come_with_the_answer_when_asked(live_server: Live, path: str) -> None:
    body = CHAT if "chat" in path else {"prompt": ["a b c", "d e"], "max_tokens": 5}
    plain = httpx.post(live_server.url + path, json=body, timeout=30).json()
    whole = httpx.post(live_server.url + path, json=body | {"timings": True}, timeout=30).json()
    assert "timings" not in plain
    timings = whole["timings"]
    assert timings["prompt_n"] + timings["cache_n"] <= whole["usage"]["prompt_tokens"]
    assert timings["predicted_ms"] > 0
    check({"id": "", **timings})
    text = httpx.post(live_server.url + path, json=body | {"timings": True, "stream": True}, timeout=30).text
    last = [chunk for chunk in text.split("\n\n") if '"timings"' in chunk]
    assert len(last) == (1 if "chat" in path else 2)
    assert all('"finish_reason":"' in chunk for chunk in last)


ANTHROPIC: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
RESPONSES: Any = {"input": "hi", "max_output_tokens": 8, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "body", "last_event"),
    [
        ("/v1/messages", ANTHROPIC, "message_delta"),
        ("/v1/responses", RESPONSES, "response.(completed|incomplete)"),
    ],
)
def test_timings_come_with_the_answers_of_other_apis_when_asked(
    live_server: Live, path: str, body: dict[str, Any], last_event: str
) -> None:
    """In a stream with the event that tells the end, and with no other."""
    url = live_server.url + path
    plain, none = (httpx.post(url, json=body | more, timeout=30).json() for more in ({}, {"timings": False}))
    assert "timings" not in plain | none
    name = f"timed-{path[4:]}"
    whole = httpx.post(url, json=body | {"timings": True, "request_id": name}, timeout=30).json()
    timings = whole["timings"]
    assert timings["predicted_n"] == whole["usage"]["output_tokens"]
    assert timings["predicted_ms"] > 0
    check({"id": "", **timings})
    kept = get(live_server, name)
    assert [p for p in timings["parts"] if p["name"] != "stream_out"] == [
        p for p in kept["parts"] if p["name"] != "stream_out"
    ]
    text = httpx.post(url, json=body | {"timings": True, "stream": True}, timeout=30).text
    (last,) = [chunk for chunk in text.split("\n\n") if '"timings"' in chunk]
    assert re.match(f"event: {last_event}\n", last), last
    told = json.loads(last.partition("data: ")[2])
    check({"id": "", **told.get("response", told)["timings"]})
    wrong = httpx.post(url, json=body | {"timings": "yes"}, timeout=30)
    assert wrong.status_code == 400
    assert "timings" in wrong.text


def test_the_prefix_result_says_what_the_cache_had(live_server: Live) -> None:
    words = "prefix result " * 30
    for name, prompt in (("prefix-1", words), ("prefix-2", words + "and more")):
        ask = {"prompt": prompt, "max_tokens": 1, "request_id": name}
        httpx.post(live_server.url + "/v1/completions", json=ask, timeout=30)
    first, second = get(live_server, "prefix-1")["prefix"], get(live_server, "prefix-2")["prefix"]
    assert first["cached_tokens"] == 0
    assert second["outcome"] == "hit"
    assert 0 < second["cached_tokens"] < second["prompt_tokens"]
    ask = {"prompt": "prefix result, but another", "max_tokens": 1, "request_id": "prefix-3"}
    httpx.post(live_server.url + "/v1/completions", json=ask, timeout=30)
    third = get(live_server, "prefix-3")["prefix"]
    assert third["differs"]["before"] + third["differs"]["own"] == ask["prompt"]
    assert third["differs"]["cached"].startswith(" prefix result prefix")


@pytest.mark.parametrize(
    ("path", "prefix", "more"),
    [
        ("/v1/completions", "cmpl-", {"prompt": ["a b c", "d e"], "max_tokens": 3}),
        ("/v1/embeddings", "embd-", {"input": ["a b c", "d e"]}),
    ],
)
def test_an_answer_to_several_prompts_is_found_by_its_name(
    live_server: Live, path: str, prefix: str, more: dict[str, Any]
) -> None:
    ask = more | {"request_id": "several"}
    answer = httpx.post(live_server.url + path, json=ask, timeout=30)
    assert answer.status_code == 200, answer.text
    for name in (f"{prefix}several", "several"):
        check(get(live_server, name))
    assert get(live_server, f"{prefix}several")["id"] in {f"{prefix}several-0", f"{prefix}several-1"}
    single = {"prompt": "a b c", "max_tokens": 1, "request_id": f"one-{prefix}3"}
    httpx.post(live_server.url + "/v1/completions", json=single, timeout=30)
    other = httpx.get(f"{live_server.url}/v1/requests/one-{prefix.strip('-')}/timeline", timeout=20)
    assert other.status_code == 404


def test_the_command_draws_a_bar_and_names_what_is_missing(live_server: Live) -> None:
    httpx.post(live_server.url + "/v1/chat/completions", json=CHAT | {"request_id": "bar/1"}, timeout=30)
    shown = run("explain", "bar/1", "--url", live_server.url)
    assert shown.returncode == 0, shown.stderr
    assert "decode" in shown.stdout
    assert "would have saved" in shown.stdout
    told = run("explain", "chatcmpl-bar/1", "--url", live_server.url, "--json")
    assert '"sentence"' in told.stdout
    missing = run("explain", "nobody", "--url", live_server.url)
    assert missing.returncode == 2
    assert "'nobody'" in missing.stderr
    nowhere = run("explain", "x", "--url", "http://127.0.0.1:9")
    assert nowhere.returncode == 1
    assert "--url" in nowhere.stderr


def test_a_key_sees_its_own_requests_only() -> None:
    """Whether another key has a request of that name does not show."""
    llm = FakeLLM(hello)
    with LiveServer(llm, AccessConfig(api_key=("alice", "bob"))) as server:
        from tests.unit.test_timeline_store import line

        llm.timelines.keep("key-1", line("chatcmpl-a"))
        path = server.url + "/v1/requests/{}/timeline"

        def status(key: str, name: str) -> int:
            return httpx.get(path.format(name), headers={"x-api-key": key}).status_code

        assert (status("alice", "chatcmpl-a"), status("bob", "chatcmpl-a")) == (200, 404)
        assert httpx.get(path.format("chatcmpl-a")).status_code == 401
        theirs = httpx.get(path.format("chatcmpl-a"), headers={"x-api-key": "bob"}).text
        nobodys = httpx.get(path.format("chatcmpl-x"), headers={"x-api-key": "bob"}).text
        assert theirs == nobodys.replace("chatcmpl-x", "chatcmpl-a")


async def _dies(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...] | HeadraceError]:
    yield (word("ab"),)
    yield (ChoiceDelta(index=0, finish_reason="error"),)
    yield EngineDeadError("gone")


def test_an_answer_whose_engine_died_has_no_made_up_timings() -> None:
    with LiveServer(FakeLLM(_dies)) as server:
        body = {"prompt": "x", "stream": True, "timings": True}
        text = httpx.post(server.url + "/v1/completions", json=body, timeout=30).text
    assert '"finish_reason":"error"' in text.replace(" ", "")
    assert '"timings"' not in text
