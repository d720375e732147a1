"""`/v1/responses`, driven by the official `openai` client, and byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from headrace.base.errors import EngineDeadError
from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import ChoiceDelta
from tests.serve.conftest import Live
from tests.serve.fake import FakeLLM, LiveServer, Seen, hello, word

PATH = "/v1/responses"
ASK: Any = {"model": "fake", "input": "hi"}


@pytest.fixture
def fake() -> Iterator[LiveServer]:
    with LiveServer(FakeLLM(hello)) as server:
        yield server


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)


def events(response: httpx.Response) -> list[Any]:
    made = []
    for frame in response.text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {made[-1]['type']}"
    assert [e["sequence_number"] for e in made] == list(range(len(made)))
    return made


def test_the_client_whole_and_streamed(live_server: Live) -> None:
    client = client_of(live_server.url)
    ask: Any = {
        "model": "smollm2",
        "instructions": "Be brief.",
        "input": "What is the capital of France?",
        "max_output_tokens": 5,
        "temperature": 0.7,
        "extra_body": {"seed": 5},
    }
    whole = client.responses.create(**ask)
    assert whole.output_text
    assert (whole.status, whole.temperature, whole.instructions) == ("incomplete", 0.7, "Be brief.")
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 5
    with client.responses.stream(**ask) as stream:
        seen = list(stream)
    text = "".join(e.delta for e in seen if e.type == "response.output_text.delta")
    assert text == whole.output_text
    assert seen[-1].type == "response.incomplete"
    assert seen[-1].response.output_text == text
    assert seen[-1].response.usage is not None
    assert seen[-1].response.usage.total_tokens == whole.usage.total_tokens
    ask["max_output_tokens"] = 60
    with client.responses.stream(**ask) as stream:
        final = stream.until_done().get_final_response()
    assert final.status == "completed"
    assert final.output_text == client.responses.create(**ask).output_text


def test_the_async_client_and_a_second_turn(live_server: Live) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=live_server.url + "/v1", api_key="x", timeout=60) as client:
            ask: Any = {"model": "smollm2", "temperature": 0, "max_output_tokens": 6}
            turns: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Name a colour."}]}]
            first = await client.responses.create(input=turns, **ask)
            turns += [item.model_dump() for item in first.output]
            turns.append({"role": "user", "content": "Another one."})
            second = await client.responses.create(input=turns, **ask)
            assert second.usage is not None
            assert first.usage is not None
            assert second.usage.input_tokens > first.usage.input_tokens
            async with client.responses.stream(input=turns, **ask) as stream:
                texts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            assert "".join(texts) == second.output_text
            chat = [
                {"role": "user", "content": "Name a colour."},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "Another one."},
            ]
            same: Any = {"messages": chat, "max_tokens": 1, "model": "smollm2"}
            other = await client.chat.completions.create(**same)
            assert other.usage is not None
            assert second.usage.input_tokens == other.usage.prompt_tokens  # TK-1: the same on every path

    asyncio.run(main())


def test_a_stream_has_exactly_these_events(fake: LiveServer) -> None:
    got = events(httpx.post(fake.url + PATH, json=ASK | {"stream": True, "request_id": "r"}))
    head = {"item_id": "msg_r_0", "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    item = {"id": "msg_r_0", "type": "message", "role": "assistant"}
    full = empty | {"text": "Hello wörld"}
    whole = httpx.post(fake.url + PATH, json=ASK | {"request_id": "r"}).json()
    assert whole["output"] == [item | {"status": "completed", "content": [full]}]
    assert whole["usage"] == {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 20,
    }
    for e in got:
        del e["sequence_number"]
        if "response" in e:
            assert set(e["response"]) | {"seed"} == set(whole)
    assert [e["response"]["status"] for e in got[:2]] == ["in_progress"] * 2
    assert [e["type"] for e in got[:2]] == ["response.created", "response.in_progress"]
    part = "response.content_part"
    assert got[2:-1] == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item | {"status": "in_progress", "content": []},
        },
        {"type": f"{part}.added", **head, "part": empty},
        *(
            {"type": "response.output_text.delta", **head, "delta": text, "logprobs": []}
            for text in ("Hel", "lo ", "wörld")
        ),
        {"type": "response.output_text.done", **head, "text": "Hello wörld", "logprobs": []},
        {"type": f"{part}.done", **head, "part": full},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": item | {"status": "completed", "content": [full]},
        },
    ]
    assert got[-1]["type"] == "response.completed"
    volatile = {"created_at", "completed_at"}
    assert {k: v for k, v in got[-1]["response"].items() if k not in volatile} == {
        k: v for k, v in whole.items() if k not in volatile
    }


def test_every_field_reaches_the_engine(fake: LiveServer) -> None:
    more = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.75,
        "repetition_penalty": 1.5,
        "top_logprobs": 2,
    }
    other = {
        "max_output_tokens": 9,
        "stop": "END",
        "cache_salt": "s",
        "priority": 4,
        "request_id": "r",
        "instructions": "Be brief.",
        "chat_template_kwargs": {"tone": "dry"},
    }
    answer = httpx.post(fake.url + PATH, json=ASK | more | other).json()
    seen = fake.llm.seen[-1]
    got = {name: getattr(seen.params, name) for name in more if name != "top_logprobs"}
    assert got == {name: more[name] for name in got}
    assert (seen.params.stop, seen.params.max_tokens, seen.params.logprobs) == (("END",), 9, 2)
    assert (seen.salt, seen.priority, seen.request_id) == ("s", 4, "resp_r")
    assert seen.kwargs == {"tone": "dry"}
    assert seen.prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert (answer["id"], answer["top_p"], answer["max_output_tokens"]) == ("resp_r", 0.5, 9)


def test_items_become_messages(fake: LiveServer) -> None:
    given = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yo", "annotations": []}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "why"},
    ]
    assert httpx.post(fake.url + PATH, json=ASK | {"input": given}).status_code == 200
    assert [(m["role"], m["content"]) for m in fake.llm.seen[-1].prompt] == [
        ("system", "Be brief."),
        ("user", "hi"),
        ("assistant", "yo"),
        ("assistant", "no"),
        ("user", "why"),
    ]


def test_logprobs_come_with_the_text() -> None:
    one = TokenLogprobs(token_id=97, logprob=-0.5, rank=1, top_ids=(97, 98), top_logprobs=(-0.5, -1.5))

    async def script(_: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        yield (word("a", logprobs=(one,), finish_reason="stop"),)

    with LiveServer(FakeLLM(script)) as server:
        ask = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = client_of(server.url).responses.create(**ask)
        assert whole.output[0].type == "message"
        text = whole.output[0].content[0]
        assert text.type == "output_text"
        assert text.logprobs is not None
        assert (text.logprobs[0].token, text.logprobs[0].logprob) == ("a", -0.5)
        assert [t.token for t in text.logprobs[0].top_logprobs] == ["a", "b"]
        told = events(httpx.post(server.url + PATH, json=ask | {"stream": True}))
        delta = next(e for e in told if e["type"] == "response.output_text.delta")
        assert delta["logprobs"] == [text.logprobs[0].model_dump()]


@pytest.mark.parametrize(
    ("ending", "status", "reason", "last"),
    [
        (ChoiceDelta(index=0, finish_reason="stop"), "completed", None, "completed"),
        (ChoiceDelta(index=0, finish_reason="stop", stop_reason="END"), "completed", None, "completed"),
        (word("x", finish_reason="length"), "incomplete", {"reason": "max_output_tokens"}, "incomplete"),
        (word("x", finish_reason="abort"), "cancelled", None, "incomplete"),
    ],
)
def test_status_per_cause(ending: ChoiceDelta, status: str, reason: Any, last: str) -> None:  # AP-8
    async def script(_: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        yield (ending,)

    with LiveServer(FakeLLM(script)) as server:
        whole = httpx.post(server.url + PATH, json=ASK).json()
        assert (whole["status"], whole["incomplete_details"]) == (status, reason)
        item = "completed" if status == "completed" else "incomplete"
        assert [i["status"] for i in whole["output"]] == [item]
        told = events(httpx.post(server.url + PATH, json=ASK | {"stream": True}))
        assert told[-1]["type"] == f"response.{last}"
        assert told[-1]["response"]["status"] == status
        assert told[-1]["response"]["usage"] == whole["usage"]
        assert [e["item"]["status"] for e in told if e["type"] == "response.output_item.done"] == [item]


def test_a_failure_in_the_middle_ends_the_stream_with_its_error() -> None:  # AP-1
    async def script(_: Seen) -> AsyncIterator[Any]:
        yield (word("a"),)
        yield EngineDeadError("the engine has stopped: boom")

    with LiveServer(FakeLLM(script)) as server:
        told = events(httpx.post(server.url + PATH, json=ASK | {"stream": True}))
        assert [e["type"] for e in told[-2:]] == ["error", "response.failed"]
        assert told[-2]["message"] == "the engine has stopped: boom"
        assert told[-1]["response"]["status"] == "failed"
        assert told[-1]["response"]["error"] == {
            "code": "server_error",
            "message": "the engine has stopped: boom",
        }
        with pytest.raises(openai.APIStatusError, match="boom"):
            client_of(server.url).responses.create(**ASK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens must be at least 1"),
        ({"input": []}, "input must not be empty"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"store": True}, "store is not supported"),
        ({"background": True}, "background is not supported"),
        ({"previous_response_id": "r"}, "previous_response_id is not supported"),
        ({"conversation": "c"}, "conversation is not supported"),
        ({"truncation": "auto"}, "truncation is not supported"),
        ({"max_tool_calls": 3}, "max_tool_calls is not supported"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "schema needs type 'json_schema', got 'text'"),
        ({"text": {"format": {"type": "text", "strict": True}}}, "strict needs type 'json_schema'"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "schema needs type 'json_schema'"),
        ({"text": {"format": {"type": "json_object", "name": "x"}}}, "name needs type 'json_schema'"),
        ({"max_tokens": 3}, "unknown field 'max_tokens'"),
        ({"top_logprobs": 21}, "logprobs must be in [0, 20]"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(fake: LiveServer, change: Any, message: str) -> None:
    answer = httpx.post(fake.url + PATH, json=ASK | change)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == next(reversed(change))
    assert fake.llm.seen == []


def test_a_text_format_asks_for_nothing(fake: LiveServer) -> None:
    for form in ({"type": "text"}, {"type": "text", "schema": None, "name": None}):
        answer = httpx.post(fake.url + PATH, json=ASK | {"text": {"format": form}})
        assert answer.status_code == 200, answer.text
        assert fake.llm.seen[-1].params.structured is None
