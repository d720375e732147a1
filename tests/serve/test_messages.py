"""`/v1/messages`, driven by the official `anthropic` client, and byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from headrace.base.errors import EngineDeadError
from headrace.engine.outputs import ChoiceDelta
from tests.serve.conftest import Live
from tests.serve.fake import FakeLLM, LiveServer, Seen, hello, word

ASK: Any = {"model": "fake", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/messages"


@pytest.fixture
def fake() -> Iterator[LiveServer]:
    with LiveServer(FakeLLM(hello)) as server:
        yield server


def client_of(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)


def events(response: httpx.Response) -> list[Any]:
    made = []
    for frame in response.text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {made[-1]['type']}"
    return made


def test_the_client_whole_and_streamed(live_server: Live) -> None:
    client = client_of(live_server.url)
    ask: Any = {
        "model": "smollm2",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}
        ],
        "extra_body": {"seed": 5, "temperature": 0.7},
    }
    whole = client.messages.create(**ask)
    assert (whole.role, whole.type, whole.model) == ("assistant", "message", "smollm2")
    assert whole.content[0].type == "text"
    assert whole.usage.output_tokens == 5
    assert whole.stop_reason == "max_tokens"
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, 5)
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert total == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    counted = client.messages.count_tokens(model=ask["model"], system=ask["system"], messages=ask["messages"])
    assert counted.input_tokens == total
    raw = client.messages.with_raw_response.create(**ask)
    assert raw.request_id == raw.parse().id


def test_the_async_client(live_server: Live) -> None:
    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=live_server.url, api_key="x", timeout=60) as client:
            ask: Any = ASK | {"model": "smollm2", "extra_body": {"temperature": 0}, "max_tokens": 8}
            whole = await client.messages.create(**ask)
            async with client.messages.stream(**ask) as stream:
                texts = [text async for text in stream.text_stream]
            assert whole.content[0].type == "text"
            assert "".join(texts) == whole.content[0].text
            kinds = [event.type async for event in await client.messages.create(**ask, stream=True)]
            assert kinds[0] == "message_start"
            assert kinds[-2:] == ["message_delta", "message_stop"]
            assert (
                await client.messages.count_tokens(model="smollm2", messages=ask["messages"])
            ).input_tokens

    asyncio.run(main())


def test_the_same_conversation_has_the_same_ids_on_every_path(live_server: Live) -> None:  # TK-1
    turns = [
        {"role": "user", "content": "What is <|im_end|> this?"},
        {"role": "assistant", "content": "A mark."},
        {"role": "user", "content": "Thanks"},
    ]
    chat = [{"role": "system", "content": "Brief."}, *turns]
    served = httpx.post(live_server.url + "/tokenize", json={"messages": chat}).json()["count"]
    body = {"system": "Brief.", "messages": turns}
    assert httpx.post(live_server.url + PATH + "/count_tokens", json=body).json() == {"input_tokens": served}


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_answer(fake: LiveServer) -> None:
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "The sum is"}]
    httpx.post(fake.url + PATH, json=ASK | {"messages": turns})
    assert fake.llm.seen[-1].kwargs == {"continue_final_message": True, "add_generation_prompt": False}


def test_every_field_reaches_the_engine(fake: LiveServer) -> None:
    more = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "stop_sequences": ["END"],
        "repetition_penalty": 1.5,
        "cache_salt": "s",
        "priority": 4,
        "request_id": "r",
        "chat_template_kwargs": {"tone": "dry"},
    }
    answer = httpx.post(fake.url + PATH, json=ASK | more).json()
    seen = fake.llm.seen[-1]
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")
    got = {name: getattr(seen.params, name) for name in names}
    assert got == {name: more[name] for name in got}
    assert (seen.params.stop, seen.params.max_tokens) == (("END",), 50)
    assert (seen.salt, seen.priority, seen.request_id) == ("s", 4, "msg_r")
    assert seen.kwargs == {"tone": "dry"}
    assert answer["id"] == "msg_r"


def test_a_stream_has_exactly_these_events(fake: LiveServer) -> None:
    got = events(httpx.post(fake.url + PATH, json=ASK | {"stream": True, "request_id": "r"}))
    start = {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3}
    message = {
        "id": "msg_r",
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": start | {"output_tokens": 3},
    }
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("Hel", "lo ", "wörld")
    ]
    assert got == [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": start | {"output_tokens": 12},
        },
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("ending", "reason", "sequence"),
    [
        (ChoiceDelta(index=0, finish_reason="stop"), "end_turn", None),
        (ChoiceDelta(index=0, finish_reason="stop", stop_reason=7), "end_turn", None),
        (ChoiceDelta(index=0, finish_reason="stop", stop_reason="END"), "stop_sequence", "END"),
        (word("x" * 50, finish_reason="length"), "max_tokens", None),
        (word("x" * 49, finish_reason="length"), "model_context_window_exceeded", None),
    ],
)
def test_stop_reasons_per_cause(ending: ChoiceDelta, reason: str, sequence: str | None) -> None:  # AP-8
    async def script(_: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        yield (ending,)

    with LiveServer(FakeLLM(script)) as server:
        whole = httpx.post(server.url + PATH, json=ASK).json()
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
        assert whole["content"] == [{"type": "text", "text": ending.text}]
        told = events(httpx.post(server.url + PATH, json=ASK | {"stream": True}))
        assert told[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
        assert [e["type"] for e in told].count("message_delta") == 1
        assert told[-2]["usage"] == whole["usage"]


def test_an_aborted_answer_is_an_error() -> None:
    async def script(_: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        yield (word("a"),)
        yield (ChoiceDelta(index=0, finish_reason="abort"),)

    with LiveServer(FakeLLM(script)) as server:
        whole = httpx.post(server.url + PATH, json=ASK)
        assert whole.status_code == 499
        assert whole.json()["error"]["type"] == "api_error"
        told = events(httpx.post(server.url + PATH, json=ASK | {"stream": True}))
        assert told[-1] == whole.json()
        assert "message_stop" not in [e["type"] for e in told]


def test_a_failure_in_the_middle_ends_the_stream_with_its_error() -> None:  # AP-1
    async def script(_: Seen) -> AsyncIterator[Any]:
        yield (word("a"),)
        yield EngineDeadError("the engine has stopped: boom")

    with LiveServer(FakeLLM(script)) as server:
        told = events(httpx.post(server.url + PATH, json=ASK | {"stream": True}))
        assert told[-1] == {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "the engine has stopped: boom"},
        }
        with pytest.raises(anthropic.APIStatusError, match="boom"):
            client_of(server.url).messages.create(**ASK)
        with (
            pytest.raises(anthropic.APIStatusError, match="boom"),
            client_of(server.url).messages.stream(**ASK) as stream,
        ):
            stream.until_done()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": ""}]}]}, "thinking"),
        ({"stop_sequences": [""]}, "stop_sequences: a stop string must have 1 to 256 characters"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences has 17 entries"),
        ({"temperature": 101}, "temperature must be in"),
        ({"top_kk": 3}, "did you mean 'top_k'"),
        ({"speed": "fast"}, "speed is not supported"),
        ({"container": "x"}, "container is not supported"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs must not set 'messages'"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(fake: LiveServer, change: Any, message: str) -> None:
    answer = httpx.post(fake.url + PATH, json=ASK | change)
    assert answer.status_code == 400
    assert set(answer.json()) == {"type", "error"}
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert message in answer.json()["error"]["message"]
    assert fake.llm.seen == []


def test_other_errors_have_the_shape_too(fake: LiveServer) -> None:
    unknown = httpx.post(fake.url + PATH, json=ASK | {"model": "gpt-9"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    with pytest.raises(anthropic.NotFoundError):
        client_of(fake.url).messages.create(**ASK | {"model": "gpt-9"})
    method = httpx.get(fake.url + PATH)
    assert (method.status_code, method.json()["type"]) == (405, "error")
    assert httpx.post(fake.url + PATH, content=b"{").json()["error"]["type"] == "invalid_request_error"


def test_nested_results_count_as_parts(fake: LiveServer) -> None:
    inner = [{"type": "text", "text": "x"}] * 3000
    block = {"type": "tool_result", "tool_use_id": "t", "content": inner}
    answer = httpx.post(fake.url + PATH, json=ASK | {"messages": [{"role": "user", "content": [block] * 2}]})
    assert answer.status_code == 400
    assert "limit 4096" in answer.json()["error"]["message"]
