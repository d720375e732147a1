"""Tool calls and reasoning by OpenAI's client, whole and streamed; malformed tools are refused by name."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from headrace.engine.output import TOOL_CALLS
from headrace.engine.outputs import ChoiceDelta
from headrace.host.text.parts.splitter import PartSplitter, ReasoningMarks, SplitPlan
from headrace.host.text.tools.dialect import DIALECTS
from tests.serve.fake import FakeLLM, LiveServer, Seen

MESSAGES: Any = [{"role": "user", "content": "Weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = (
    "<think>Two cities.</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "' + "Ō" * 1200 + '"}}\n</tool_call>'
)
PLAN = SplitPlan(
    reasoning=ReasoningMarks(begin="<think>", end="</think>"),
    calls=DIALECTS.get("hermes"),
    names=frozenset({"get_weather"}),
)


def saying(text: str, size: int, finish: str = "stop") -> Callable[[Seen], AsyncIterator[Any]]:
    """A script that says a text in pieces, taken apart as the engine does it."""

    async def script(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        splitters = [PartSplitter(PLAN) for _ in range(seen.params.n)]
        for i in range(0, len(text), size):
            piece = text[i : i + size]
            made = (ChoiceDelta(index=n, text=piece, token_ids=(1,)) for n in range(seen.params.n))
            yield tuple(replace(d, parts=tuple(splitters[d.index].push(piece))) for d in made)
            await asyncio.sleep(0)
        yield tuple(
            ChoiceDelta(
                index=n,
                parts=tuple(splitter.flush(is_cut=finish != "stop")),
                finish_reason=TOOL_CALLS if splitter.num_calls and finish == "stop" else finish,
            )
            for n, splitter in enumerate(splitters)
        )

    return script


def client_of(live: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def called(message: Any) -> list[tuple[str, str, dict[str, Any]]]:
    calls = message.tool_calls or []
    assert len({c.id for c in calls}) == len(calls)
    return [(c.type, c.function.name, json.loads(c.function.arguments)) for c in calls]


WANTED = [("function", "get_weather", {"city": "Rome"}), ("function", "get_weather", {"city": "Ō" * 1200})]


@pytest.mark.parametrize("size", [1, 5, 64, 10_000])
def test_the_client_gets_calls_and_reasoning(size: int) -> None:
    """AP-4: whole and streamed answers agree, however the text came."""
    with LiveServer(FakeLLM(saying(CALLS, size))) as live, client_of(live) as client:
        asked: Any = {"model": "fake", "messages": MESSAGES, "tools": [WEATHER]}
        whole = client.chat.completions.create(**asked).choices[0]
        assert (called(whole.message), whole.finish_reason) == (WANTED, "tool_calls")
        assert whole.message.content == "Let me see."
        assert getattr(whole.message, "reasoning_content", None) == "Two cities."
        with client.chat.completions.stream(**asked) as stream:
            chunks = [e.chunk for e in stream if e.type == "chunk"]
            final = stream.get_final_completion().choices[0]
        assert (called(final.message), final.finish_reason) == (WANTED, "tool_calls")
        assert final.message.content == "Let me see."
        deltas = [c.choices[0].delta for c in chunks if c.choices]
        assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "Two cities."
        pieces = [t for d in deltas for t in d.tool_calls or []]
        assert [(t.index, t.type) for t in pieces if t.id] == [(0, "function"), (1, "function")]
        assert [t.index for t in pieces if t.function and t.function.name] == [0, 1]
        if size == 5:
            assert len([t for t in pieces if t.index == 1]) > 10, "long arguments come as they are written"
        assert sum(c.choices[0].finish_reason is not None for c in chunks if c.choices) == 1


def test_content_is_null_beside_calls_only() -> None:
    text = '<tool_call>{"name": "get_weather"}</tool_call>'
    with LiveServer(FakeLLM(saying(text, 3))) as live, client_of(live) as client:
        asked: Any = {"model": "fake", "messages": MESSAGES, "tools": [WEATHER], "n": 2}
        for choice in client.chat.completions.create(**asked).choices:
            assert choice.message.content is None
            assert called(choice.message) == [("function", "get_weather", {})]


def test_a_cut_call_is_no_call_ap_5() -> None:
    """AP-5: `length`, and nothing that the next turn could stumble over."""
    with LiveServer(FakeLLM(saying(CALLS[:130], 4, "length"))) as live, client_of(live) as client:
        asked: Any = {"model": "fake", "messages": MESSAGES, "tools": [WEATHER]}
        choice = client.chat.completions.create(**asked).choices[0]
        assert (called(choice.message), choice.finish_reason) == (WANTED[:1], "length")
        assert "<tool_call>" not in (choice.message.content or "")


def test_plain_text_with_tools_streams_as_content() -> None:
    with LiveServer(FakeLLM(saying("Hello there, <b>you</b>.", 4))) as live, client_of(live) as client:
        asked: Any = {"model": "fake", "messages": MESSAGES, "tools": [WEATHER], "stream": True}
        texts = [c.choices[0].delta.content for c in client.chat.completions.create(**asked)]
        assert "".join(t or "" for t in texts) == "Hello there, <b>you</b>."
        assert len([t for t in texts if t]) > 3


def test_every_token_has_its_log_probability_and_id() -> None:
    """Tokens whose text is held are counted in the chunk that they came with."""
    with LiveServer(FakeLLM(saying(CALLS, 5))) as live:
        body = {"messages": MESSAGES, "tools": [WEATHER], "stream": True, "return_token_ids": True}
        text = httpx.post(f"{live.url}/v1/chat/completions", json=body).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        ids = [i for e in events for c in e["choices"] for i in c.get("token_ids", [])]
        assert len(ids) == -(-len(CALLS) // 5)


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | function}


def schema(**fields: Any) -> dict[str, Any]:
    return tool(parameters={"type": "object"} | fields)


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}}
    return tool(parameters=made)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"tools": ["f"]}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [tool() | {"extra": 1}]}, "tools"),
    ({"tools": [tool(extra=1)]}, "tools"),
    ({"tools": [tool(name="")]}, "tools"),
    ({"tools": [tool(name="a" * 65)]}, "tools"),
    ({"tools": [tool(name="a b")]}, "tools"),
    ({"tools": [tool(name=5)]}, "tools"),
    ({"tools": [tool(), tool()]}, "tools"),
    ({"tools": [tool(name=f"f{i}") for i in range(129)]}, "tools"),
    ({"tools": [tool(description=5)]}, "tools"),
    ({"tools": [tool(description="x" * 20_000)]}, "tools"),
    ({"tools": [tool(name=f"f{i}", description="x" * 10_000) for i in range(30)]}, "tools"),
    ({"tools": [tool(strict="yes")]}, "tools"),
    ({"tools": [tool(parameters=5)]}, "tools"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools"),
    ({"tools": [schema(type=5)]}, "tools"),
    ({"tools": [schema(properties={"a": {"type": 5}})]}, "tools"),
    ({"tools": [schema(properties={"a": {"type": "text"}})]}, "tools"),
    ({"tools": [schema(properties={"a": {"pattern": {}}})]}, "tools"),
    ({"tools": [schema(properties=["a"])]}, "tools"),
    ({"tools": [schema(properties={"a": 1})]}, "tools"),
    ({"tools": [schema(required="a")]}, "tools"),
    ({"tools": [schema(anyOf=[])]}, "tools"),
    ({"tools": [schema(properties={"a": {"minimum": "1"}})]}, "tools"),
    ({"tools": [schema(properties={"a": {"minLength": -1}})]}, "tools"),
    ({"tools": [nested(18)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
    ({"tools": [tool()], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
    ({"tools": [tool()], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"tools": "f"}, "tools"),
    ({"reasoning_effort": 5}, "reasoning_effort"),
    ({"include_reasoning": "no"}, "include_reasoning"),
]


@pytest.mark.parametrize(("fields", "param"), MALFORMED)
def test_malformed_tools_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Chapter 16, CVE-2025-48944: type = 5, patterns that are none, deep and large schemas: 400, not 500."""
    with LiveServer(FakeLLM(saying("hi", 2))) as live:
        answer = httpx.post(f"{live.url}/v1/chat/completions", json={"messages": MESSAGES} | fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_what_asks_for_nothing_passes() -> None:
    with LiveServer(FakeLLM(saying("hi", 2))) as live:
        for fields in (
            {"tools": None, "tool_choice": None},
            {"tools": [], "tool_choice": "none"},
            {"tools": [tool(parameters={}, strict=False, description=None)], "parallel_tool_calls": False},
            {"tools": [nested(10)], "tool_choice": "auto"},
            {"reasoning_effort": None, "include_reasoning": None},
        ):
            answer = httpx.post(f"{live.url}/v1/chat/completions", json={"messages": MESSAGES} | fields)
            assert answer.status_code == 200, answer.text
