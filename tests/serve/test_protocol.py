"""The wire, byte by byte, against a scripted engine."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from headrace.base.errors import ContextLengthError, EngineDeadError, OverloadError
from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import ChoiceDelta, EngineHealth
from tests.serve.fake import FakeLLM, LiveServer, Seen, hello, word

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def live() -> Iterator[LiveServer]:
    with LiveServer(FakeLLM(hello)) as server:
        yield server


def post(server: LiveServer, path: str, body: Any, **more: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(server.url + path, content=content, timeout=20, **more)


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_chat_stream_has_exactly_these_chunks(live: LiveServer) -> None:
    response = post(live, "/v1/chat/completions", CHAT | {"stream": True, "request_id": "r1"})
    assert response.headers["content-type"].startswith("text/event-stream")
    got = events(response)
    assert {e["id"] for e in got} == {"chatcmpl-r1"}
    assert {e["object"] for e in got} == {"chat.completion.chunk"}
    choices = [c for e in got for c in e["choices"]]
    assert [c["delta"] for c in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo "},
        {"content": "wörld"},
        {},
    ]
    assert [c["finish_reason"] for c in choices] == [None, None, None, None, "stop"]
    assert got[0]["seed"] == 7
    assert all("usage" not in e for e in got)


def test_usage_chunk_has_no_choices_and_equals_the_whole_answer(live: LiveServer) -> None:
    whole = post(live, "/v1/chat/completions", CHAT | {"n": 3, "seed": 11}).json()
    got = events(
        post(
            live,
            "/v1/chat/completions",
            CHAT | {"n": 3, "seed": 11, "stream": True, "stream_options": {"include_usage": True}},
        )
    )
    assert got[-1]["choices"] == []
    assert got[-1]["usage"] == whole["usage"]
    assert whole["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 3 * len("Hello wörld".encode()),
        "total_tokens": 8 + 3 * 12,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert whole["seed"] == 11
    assert [c["message"]["content"] for c in whole["choices"]] == ["Hello wörld"] * 3
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]


async def uneven(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    yield (word("a", 0), word("b", 2))
    yield (word("c", 1, finish_reason="length"), word("d", 0))
    yield (word("e", 2), word("f", 0))
    yield (ChoiceDelta(index=2, finish_reason="stop", stop_reason="END"),)
    yield (word("g", 0, finish_reason="stop", stop_reason=103),)


def test_choices_of_different_lengths() -> None:
    with LiveServer(FakeLLM(uneven)) as live:
        whole = post(live, "/v1/completions", {"prompt": "x", "n": 3}).json()
        got = events(
            post(
                live,
                "/v1/completions",
                {"prompt": "x", "n": 3, "stream": True, "stream_options": {"include_usage": True}},
            )
        )
    assert [c["text"] for c in whole["choices"]] == ["adfg", "c", "be"]
    assert [c["finish_reason"] for c in whole["choices"]] == ["stop", "length", "stop"]
    assert [c["stop_reason"] for c in whole["choices"]] == [103, None, "END"]
    texts, reasons = {0: "", 1: "", 2: ""}, []
    for choice in (c for e in got for c in e["choices"]):
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons.append((choice["index"], choice["finish_reason"], choice["stop_reason"]))
    assert texts == {0: "adfg", 1: "c", 2: "be"}
    assert sorted(reasons) == [(0, "stop", 103), (1, "length", None), (2, "stop", "END")]
    assert got[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 7


async def raises_at_5(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    yield (word("x", 1, finish_reason="length"),)
    for text in "abcd":
        yield (word(text),)
    raise RuntimeError("a secret of the server")


async def reports_at_5(seen: Seen) -> AsyncIterator[Any]:
    yield (word("x", 1, finish_reason="length"),)
    for text in "abcd":
        yield (word(text),)
    yield EngineDeadError("the engine has stopped")


@pytest.mark.parametrize(
    ("script", "code", "status"),
    [(raises_at_5, "internal_error", 500), (reports_at_5, "engine_unavailable", 503)],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_error_in_the_middle_ends_the_stream_properly(
    script: Any, code: str, status: int, path: str
) -> None:
    body: dict[str, Any] = (CHAT if "chat" in path else {"prompt": "x"}) | {"n": 2}
    with LiveServer(FakeLLM(script)) as live:
        got = events(post(live, path, body | {"stream": True}))
        whole = post(live, path, body)
    assert got[-1]["error"]["code"] == code
    reasons = [(c["index"], c["finish_reason"]) for e in got[:-1] for c in e["choices"] if c["finish_reason"]]
    assert sorted(reasons) == [(0, "error"), (1, "length")]
    assert "secret" not in json.dumps(got)
    assert whole.status_code == status
    assert whole.json()["error"]["code"] == code
    assert "secret" not in whole.text


def test_the_official_client_raises_on_an_error_in_the_middle() -> None:
    with LiveServer(FakeLLM(reports_at_5)) as live:
        client = openai.OpenAI(base_url=live.url + "/v1", api_key="x", max_retries=0)
        stream = client.chat.completions.create(model="fake", messages=CHAT["messages"], n=2, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.APIError, match="engine has stopped"):
            list(stream)


async def refuses(seen: Seen) -> AsyncIterator[Any]:
    if seen.params.max_tokens == 1:
        raise OverloadError("the queue is full", retry_after_s=2.4)
    raise ContextLengthError("prompt has 99 tokens, limit 64", param="messages")
    yield ()


@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_first_output_are_status_codes(stream: bool) -> None:
    with LiveServer(FakeLLM(refuses)) as live:
        full = post(live, "/v1/chat/completions", CHAT | {"max_tokens": 1, "stream": stream})
        long = post(live, "/v1/chat/completions", CHAT | {"stream": stream})
    assert (full.status_code, full.headers["retry-after"]) == (429, "3")
    assert full.json()["error"]["type"] == "rate_limit_error"
    assert long.status_code == 400
    assert long.json()["error"] == {
        "message": "prompt has 99 tokens, limit 64",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


def endless(started: list[Seen], first: bool) -> Any:
    async def script(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        started.append(seen)
        if first:
            yield (word("a"),)
        while True:
            await asyncio.sleep(0.01)
            if first:
                yield (word("a"),)

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("prompts", ["x", ["x", "y", "z"]])
def test_a_disconnect_closes_the_engine_requests(stream: bool, first: bool, prompts: Any) -> None:
    started: list[Seen] = []
    with LiveServer(FakeLLM(endless(started, first))) as live:
        body = json.dumps({"prompt": prompts, "max_tokens": 4000, "stream": stream}).encode()
        host, port = live.url[7:].split(":")
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        wanted = 1 if prompts == "x" else 3
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(head + body)
            wait_for(lambda: len(started) == wanted)
            time.sleep(0.05)
        wait_for(lambda: all(s.closed for s in started))
        assert httpx.get(live.url + "/health").status_code == 200


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


async def with_logprobs(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    def lp(i: int, value: float) -> TokenLogprobs:
        tops = seen.params.logprobs or 0
        ids, values = (i, 66, 67)[:tops], (value, -2.0, float("-inf"))[:tops]
        return TokenLogprobs(token_id=i, logprob=value, rank=1, top_ids=ids, top_logprobs=values)

    yield (ChoiceDelta(index=0, token_ids=(65, 0xC3), text="A", logprobs=(lp(65, -0.5), lp(0xC3, -1.0))),)
    last = ChoiceDelta(
        index=0, token_ids=(0xA4,), text="ä", logprobs=(lp(0xA4, -0.25),), finish_reason="length"
    )
    yield (last,)


def test_logprobs_in_both_forms() -> None:
    with LiveServer(FakeLLM(with_logprobs)) as live:
        ask = CHAT | {"logprobs": True}
        bare = post(live, "/v1/chat/completions", ask).json()["choices"][0]["logprobs"]["content"]
        three = post(live, "/v1/chat/completions", ask | {"top_logprobs": 3}).json()
        streamed = events(post(live, "/v1/chat/completions", ask | {"top_logprobs": 3, "stream": True}))
        old = post(live, "/v1/completions", {"prompt": "x", "logprobs": 2}).json()["choices"][0]["logprobs"]
        old_chunks = events(post(live, "/v1/completions", {"prompt": "x", "logprobs": 2, "stream": True}))
    assert [(t["token"], t["bytes"], t["top_logprobs"]) for t in bare] == [
        ("A", [65], []),
        ("�", [0xC3], []),
        ("�", [0xA4], []),
    ]
    content = three["choices"][0]["logprobs"]["content"]
    assert content[0]["top_logprobs"][2] == {"token": "C", "logprob": -9999.0, "bytes": [67]}
    chunks = [c["logprobs"]["content"] for e in streamed for c in e["choices"] if c["logprobs"]]
    assert [t for chunk in chunks for t in chunk] == content
    assert old == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.5, -1.0, -0.25],
        "tokens": ["A", "bytes:\\xc3", "bytes:\\xa4"],
        "top_logprobs": [
            {"A": -0.5, "B": -2.0},
            {"B": -2.0, "bytes:\\xc3": -1.0},
            {"B": -2.0, "bytes:\\xa4": -0.25},
        ],
    }
    parts = [c["logprobs"] for e in old_chunks for c in e["choices"] if c["logprobs"]]
    for name, values in old.items():
        assert [v for part in parts for v in part[name]] == values


def test_several_prompts_and_echo(live: LiveServer) -> None:
    whole = post(
        live,
        "/v1/completions",
        {"prompt": ["ab", [99, 100]], "n": 2, "echo": True, "return_token_ids": True},  # a text and ids
    ).json()
    assert [c["text"] for c in whole["choices"]] == ["abHello wörld"] * 2 + ["cdHello wörld"] * 2
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert whole["choices"][3]["prompt_token_ids"] == [99, 100]
    assert whole["choices"][3]["token_ids"] == list("Hello wörld".encode())
    assert whole["usage"]["prompt_tokens"] == 4
    body = {"prompt": ["ab", "cd"], "echo": True, "stream": True}
    texts = {0: "", 1: ""}
    for choice in (c for e in events(post(live, "/v1/completions", body)) for c in e["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "abHello wörld", 1: "cdHello wörld"}
    one = post(live, "/v1/completions", {"prompt": [104, 105], "echo": True}).json()
    assert one["choices"][0]["text"] == "hiHello wörld"


def test_health_follows_the_engine(live: LiveServer) -> None:
    assert httpx.get(live.url + "/health").status_code == 200
    assert httpx.get(live.url + "/ready").status_code == 200
    live.llm.state = EngineHealth(alive=True, making_progress=False, ready=True, reason="stuck at step 7")
    response = httpx.get(live.url + "/health")
    assert (response.status_code, response.json()["reason"]) == (503, "stuck at step 7")
    live.llm.state = EngineHealth(alive=False, making_progress=False, ready=False, reason="it was killed")
    refused = post(live, "/v1/chat/completions", CHAT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
    assert refused.headers["retry-after"] == "3"


def test_draining_refuses_new_work_but_stays_healthy(live: LiveServer) -> None:
    live.state.draining = True
    assert httpx.get(live.url + "/ready").status_code == 503
    assert httpx.get(live.url + "/health").status_code == 200
    refused = post(live, "/v1/completions", {"prompt": "x"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_small_pages(live: LiveServer) -> None:
    card = httpx.get(live.url + "/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("fake", 64)
    assert card["default_sampling_params"]["temperature"] == 0.7
    assert httpx.get(live.url + "/v1/models/fake").json() == card
    missing = httpx.get(live.url + "/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "model")
    assert "version" in httpx.get(live.url + "/version").json()
    assert httpx.get(live.url + "/nowhere").json()["error"]["code"] == "not_found"
    assert httpx.get(live.url + "/v1/completions").status_code == 405
    tokens = post(live, "/tokenize", {"prompt": "hä", "return_token_strs": True}).json()
    assert tokens == {
        "count": 3,
        "max_model_len": 64,
        "tokens": [104, 195, 164],
        "token_strs": ["h", "�", "�"],
    }
    assert post(live, "/tokenize", CHAT).json()["tokens"] == list(b"user:hi|")
    assert post(live, "/detokenize", {"tokens": [104, 195, 164]}).json() == {"prompt": "hä"}
    assert post(live, "/detokenize", {"tokens": [257]}).status_code == 400


def test_metrics(live: LiveServer) -> None:
    post(live, "/v1/chat/completions", CHAT | {"n": 2})
    post(live, "/v1/chat/completions", CHAT | {"nope": 2})
    text = httpx.get(live.url + "/metrics").text
    for line in (
        'headrace_request_success_total{finished_reason="stop"} 2.0',
        'headrace_request_refused_total{code="invalid_request_error"} 1.0',
        "headrace_generation_tokens_total 5.0",
        "headrace_num_preemptions_total 1.0",
        "headrace_num_requests_running 2.0",
        "headrace_kv_cache_usage_perc 0.4",
        "headrace_time_to_first_token_seconds_count 1.0",
        "headrace_inter_token_latency_seconds_count 4.0",
        "headrace_e2e_request_latency_seconds_count 1.0",
    ):
        assert line in text, line
