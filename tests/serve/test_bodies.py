"""Bodies: hostile ones never cost a 500, and nothing that is asked for is silently ignored."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.base.request import SamplingParams
from headrace.serve import limits
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.completion import CompletionBody
from headrace.serve.schema.sampling import SamplingBody
from headrace.serve.schema.support import CHAT_NEUTRAL, COMPLETION_NEUTRAL, LABELS
from tests.serve.fake import FakeLLM, LiveServer, hello
from tests.serve.test_protocol import CHAT, events, post


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with LiveServer(FakeLLM(hello), max_body_bytes=1 << 20) as server:
        yield server


HOSTILE: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b'{"prompt": "x"',
    b'{"prompt": NaN}',
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "temperature": Infinity}',
    b'{"prompt": "x", "temperature": 1e999}',
    b'{"prompt": "x", "seed": ' + b"9" * 400 + b"}",
    b'{"prompt": "x", "seed": ' + b"9" * 100_000 + b"}",
    b'{"prompt": "x", "seed": -1}',
    b'{"prompt": "x", "n": 1000000}',
    b'{"prompt": "x", "max_tokens": 0}',
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "max_tokens": 1.5}',
    b'{"prompt": "x", "max_tokens": "5"}',
    b'{"prompt": "x", "max_tokens": true}',
    b'{"prompt": "x", "logprobs": 21}',
    b'{"prompt": "x", "stop": [""]}',
    b'{"prompt": "x", "stop": ' + json.dumps(["s"] * 17).encode() + b"}",
    b'{"prompt": "x", "stop": ' + json.dumps(["s"] * 50_000).encode() + b"}",
    b'{"prompt": "x", "bad_words": ' + json.dumps(["s"] * 50_000).encode() + b"}",
    b'{"prompt": "x", "logit_bias": {"-1": 1}}',
    b'{"prompt": "x", "logit_bias": {"\xd9\xa3": 1}}',
    b'{"prompt": "x", "logit_bias": {"1": 1e300}}',
    b'{"prompt": "x", "logit_bias": {"' + b"9" * 5000 + b'": 1}}',
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\\ud800"}',
    b"\xff\xfe{}",
    b'{"prompt": []}',
    b'{"prompt": [[]]}',
    b'{"prompt": [1, "a"]}',
    b'{"prompt": [-1]}',
    b'{"prompt": [true]}',
    b'{"prompt": [99999999999]}',
    b'{"prompt": [1.5]}',
    b'{"prompt": {"a": 1}}',
    b'{"prompt": ' + json.dumps([1] * 65).encode() + b"}",
    b'{"prompt": ' + json.dumps(["x"] * 129).encode() + b"}",
    b'{"prompt": "x", "stream": "yes"}',
    b'{"prompt": "x", "stream_options": {"include_usage": true}}',
    b'{"prompt": "x", "request_id": "' + b"r" * 300 + b'"}',
    b'{"prompt": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
    b'{"prompt": ' + b'{"a":' * 60_000 + b"1" + b"}" * 60_000 + b"}",
    b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}",
    b'{"prompt": "x", "metadata": {"a": 1}}',
    b"a" * 1000,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_bodies_get_400(live: LiveServer, number: int) -> None:
    response = post(live, "/v1/completions", HOSTILE[number])
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"]
    assert len(response.content) < 3000
    assert set(error) == {"message", "type", "param", "code"}


HOSTILE_CHAT: list[dict[str, Any]] = [
    {},
    {"messages": []},
    {"messages": "hi"},
    {"messages": [1]},
    {"messages": [{"role": "user"} | {"extra": 1}]},
    {"messages": [{"role": 1, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
    {"messages": [{"role": "user", "content": "x"}] * 5000},
    CHAT | {"top_logprobs": 3},
    CHAT | {"logprobs": 3},
    CHAT | {"logprobs": True, "top_logprobs": 21},
    CHAT | {"max_tokens": 3, "max_completion_tokens": 4},
    CHAT | {"add_generation_prompt": True, "continue_final_message": True},
    CHAT | {"chat_template_kwargs": {"tokenize": True}},
    CHAT | {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
    CHAT | {"chat_template_kwargs": {"messages": []}},
    CHAT | {"chat_template_kwargs": {"tools": []}},
    CHAT | {"chat_template_kwargs": {"a b": 1}},
    CHAT | {"model": "another" * 50},
]


@pytest.mark.parametrize("number", range(len(HOSTILE_CHAT)))
def test_hostile_conversations_get_400(live: LiveServer, number: int) -> None:
    response = post(live, "/v1/chat/completions", HOSTILE_CHAT[number])
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_an_unknown_field_is_named_and_the_nearest_suggested(live: LiveServer) -> None:
    error = post(live, "/v1/completions", {"prompt": "x", "temprature": 1}).json()["error"]
    assert error["param"] == "temprature"
    assert "did you mean 'temperature'?" in error["message"]
    internal = post(live, "/v1/completions", {"prompt": "x", "bootstrap_host": "h"})
    assert internal.status_code == 400


EFFECTS: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "parallel_tool_calls": "sometimes",
    "prediction": {"type": "content", "content": "x"},
    "service_tier": "flex",
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
    "suffix": "end",
    "chat_template": "{{ 1 }}",
    "detokenize": False,
    "documents": [{"text": "x"}],
    "echo": True,
    "kv_transfer_params": {},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_embeds": "x",
    "return_tokens_as_token_ids": True,
    "spaces_between_special_tokens": False,
    "stream_interval": 4,
    "truncation_side": "right",
    "vllm_xargs": {},
}


def refused_value(name: str, neutral: Any) -> Any:
    if name == "add_special_tokens":
        return True not in neutral[name]
    return EFFECTS[name]


@pytest.mark.parametrize("name", sorted(CHAT_NEUTRAL))
def test_unsupported_chat_fields_are_refused_by_name(live: LiveServer, name: str) -> None:
    response = post(live, "/v1/chat/completions", CHAT | {name: refused_value(name, CHAT_NEUTRAL)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    for value in CHAT_NEUTRAL[name]:
        assert post(live, "/v1/chat/completions", CHAT | {name: value}).status_code == 200


@pytest.mark.parametrize("name", sorted(COMPLETION_NEUTRAL))
def test_unsupported_completion_fields_are_refused_by_name(live: LiveServer, name: str) -> None:
    response = post(live, "/v1/completions", {"prompt": "x", name: refused_value(name, COMPLETION_NEUTRAL)})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    for value in COMPLETION_NEUTRAL[name]:
        assert post(live, "/v1/completions", {"prompt": "x", name: value}).status_code == 200


REACHES: dict[str, tuple[Any, Any]] = {
    "temperature": (0.25, 0.25),
    "top_k": (5, 5),
    "top_p": (0.5, 0.5),
    "min_p": (0.125, 0.125),
    "repetition_penalty": (1.5, 1.5),
    "presence_penalty": (0.5, 0.5),
    "frequency_penalty": (-0.5, -0.5),
    "logit_bias": ({"5": 1.5, "7": -2.0}, ((5, 1.5), (7, -2.0))),
    "allowed_token_ids": ([1, 2], (1, 2)),
    "bad_words": (["no"], ("no",)),
    "seed": (42, 42),
    "stop": ("END", ("END",)),
    "stop_token_ids": ([9], (9,)),
    "include_stop_str_in_output": (True, True),
    "min_tokens": (2, 2),
    "max_tokens": (9, 9),
    "ignore_eos": (True, True),
    "n": (2, 2),
    "prompt_logprobs": (1, 1),
    "skip_special_tokens": (False, False),
    "truncate_prompt_tokens": (3, 3),
    "speculate": ("off", "off"),
}
ELSEWHERE = {
    *(
        "model",
        "stream",
        "stream_options",
        "priority",
        "request_id",
        "cache_salt",
        "return_token_ids",
        "timings",
        *LABELS,
    ),
    *("messages", "max_completion_tokens", "logprobs", "top_logprobs", "prompt", "echo"),
    *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    *("response_format", "structured_outputs"),
    *("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning"),
    *("use_beam_search", "best_of", "length_penalty", "early_stopping"),
    "thinking_token_budget",
}
"""Fields that are no sampling parameter, or are tested on their own."""


def test_every_field_is_accounted_for() -> None:
    for model in (SamplingBody, ChatBody, CompletionBody):
        assert set(model.model_fields) <= set(REACHES) | ELSEWHERE
    sampling = set(SamplingParams.__dataclass_fields__) - {"bad_words_ids", "logprobs", "structured", "beams"}
    assert sampling == set(REACHES)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("name", sorted(REACHES))
def test_every_sampling_field_reaches_the_engine(live: LiveServer, name: str, path: str) -> None:
    given, wanted = REACHES[name]
    body = (CHAT if "chat" in path else {"prompt": "x"}) | {name: given}
    assert post(live, path, body).status_code == 200
    assert getattr(live.llm.seen[-1].params, name) == wanted


def test_what_is_left_out_comes_from_the_engine(live: LiveServer) -> None:
    post(live, "/v1/completions", {"prompt": "x", "temperature": None})
    assert live.llm.seen[-1].params.temperature == 0.7
    assert live.llm.seen[-1].params.max_tokens == 16
    post(live, "/v1/chat/completions", CHAT)
    assert live.llm.seen[-1].params.max_tokens is None
    post(live, "/v1/chat/completions", CHAT | {"max_completion_tokens": 5, "logprobs": True})
    assert live.llm.seen[-1].params.max_tokens == 5
    assert live.llm.seen[-1].params.logprobs == 0


def test_vendor_fields_reach_the_engine(live: LiveServer) -> None:
    body = CHAT | {"request_id": "abc", "cache_salt": "tenant", "priority": -3}
    body |= {"chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": True}
    assert post(live, "/v1/chat/completions", body).json()["id"] == "chatcmpl-abc"
    seen = live.llm.seen[-1]
    assert (seen.request_id, seen.salt, seen.priority) == ("chatcmpl-abc", "tenant", -3)
    assert seen.kwargs == {
        "enable_thinking": False,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    by_header = post(live, "/v1/completions", {"prompt": "x"}, headers={"X-Request-Id": "hdr"})
    assert by_header.json()["id"] == "cmpl-hdr"
    message = {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    post(live, "/v1/chat/completions", {"messages": [message | {"refusal": None, "annotations": []}]})
    assert live.llm.seen[-1].prompt == [{"role": "assistant", "content": "ab"}]


def test_labels_change_nothing(live: LiveServer) -> None:
    labels = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}
    got = post(live, "/v1/chat/completions", CHAT | labels | {"request_id": "same"}).json()
    plain = post(live, "/v1/chat/completions", CHAT | {"request_id": "same"}).json()
    assert got | {"created": 0} == plain | {"created": 0}


def test_a_large_body_is_refused_before_it_is_read(live: LiveServer) -> None:
    host, port = live.url[7:].split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n")
        raw.settimeout(2)
        assert b" 413 " in raw.recv(4096)
    chunked = httpx.post(
        live.url + "/v1/completions", content=iter([b'{"prompt": "', *([b"a" * 65536] * 40), b'"}'])
    )
    assert chunked.status_code == 413
    assert chunked.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    "body", [{"prompt": "a b " * 200_000}, {"messages": [{"role": "user", "content": "a b " * 200_000}]}]
)
def test_a_text_far_beyond_the_context_is_not_tokenized(live: LiveServer, body: dict[str, Any]) -> None:
    refused = post(live, "/tokenize", body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "limit is 64 tokens" in refused.json()["error"]["message"]


NAMES = {f"k{i}": 1 for i in range(900_000)}
MANY = 400_000
COSTLY: dict[str, tuple[str, bytes]] = {
    "a long name": ("/v1/completions", b'{"prompt":"a","' + b"ab" * 7_000_000 + b'":1}'),
    "fields": ("/v1/completions", json.dumps({"prompt": "a", **NAMES}).encode()),
    "options": (
        "/v1/completions",
        json.dumps({"prompt": "a", "stream": True, "stream_options": NAMES}).encode(),
    ),
    "parts": ("/v1/chat/completions", b'{"messages":[{"role":"user","content":[' + b"1," * MANY + b"1]}]}"),
    "calls": (
        "/v1/chat/completions",
        b'{"messages":[{"role":"user","tool_calls":[' + b"1," * MANY + b"1]}]}",
    ),
    "message fields": (
        "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", **NAMES}]}).encode(),
    ),
    "tokens": ("/detokenize", b'{"tokens":[' + b'"",' * MANY + b"1]}"),
}
del NAMES


@pytest.mark.parametrize("name", sorted(COSTLY))
def test_what_is_refused_costs_little(name: str) -> None:
    path, body = COSTLY[name]
    with LiveServer(FakeLLM(hello)) as live, httpx.Client(base_url=live.url) as client:
        answers: list[httpx.Response] = []
        sender = threading.Thread(target=lambda: answers.append(post(live, path, body)))
        client.get("/health")
        sender.start()
        slowest = 0.0
        while sender.is_alive():
            start = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
    assert answers[0].status_code == 400
    assert len(answers[0].content) < 1000
    assert slowest < 0.5


def test_health_answers_while_large_bodies_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, is_on_loop = limits.parse_object, list[bool]()

    def noted(body: bytes) -> dict[str, Any]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            is_on_loop.append(False)
        else:
            is_on_loop.append(True)
        return parse(body)

    monkeypatch.setattr(limits, "parse_object", noted)
    with LiveServer(FakeLLM(hello), max_body_bytes=32 << 20) as live:
        bodies = [
            json.dumps({"prompt": "word " * 4_000_000}).encode(),
            b'{"prompt": [' + b"[]," * 5_000_000 + b"[]]}",
            b'{"prompt": [' + b"1," * 900_000 + b"1]}",
        ]

        def slowest_s() -> float:
            answers: list[int] = []

            def send() -> None:
                answers.extend(post(live, "/v1/completions", body).status_code for body in bodies)

            sender = threading.Thread(target=send)
            sender.start()
            slowest = 0.0
            with httpx.Client(base_url=live.url) as client:
                client.get("/health")
                while sender.is_alive():
                    start = time.monotonic()
                    assert client.get("/health").status_code == 200
                    slowest = max(slowest, time.monotonic() - start)
            assert answers == [400, 400, 400]
            return slowest

        # A loop that is held up is so every time; by other work on the machine it is not.
        assert any(slowest_s() < 0.2 for _ in range(4))
        assert len(is_on_loop) >= 3
        assert not any(is_on_loop)


def test_a_huge_header_is_refused(live: LiveServer) -> None:
    """CVE-2025-48956."""
    host, port = live.url[7:].split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.settimeout(5)
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ")
        sent = 0
        try:
            while sent < 100 << 20:
                raw.sendall(b"a" * 65536)
                sent += 65536
        except ConnectionError:
            pass
        assert sent < 100 << 20


def test_streams_send_no_empty_events(live: LiveServer) -> None:
    got = events(post(live, "/v1/completions", {"prompt": "x", "stream": True}))
    assert [e["choices"][0]["text"] for e in got] == ["Hel", "lo ", "wörld", ""]
    assert got[-1]["choices"][0]["finish_reason"] == "stop"
