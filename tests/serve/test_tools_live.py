"""Tool calls that are asked for, on the embedded model: the arguments follow the schema."""

import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.serve.conftest import Live

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    },
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def arguments_of(message: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for call in message.tool_calls or []:
        given = json.loads(call.function.arguments)
        if call.function.name == "get_weather":
            jsonschema.validate(given, SCHEMA)
        else:
            assert (call.function.name, given) == ("get_time", {})
        made.append(given)
    return made


@pytest.mark.parametrize("choice", ["required", NAMED, "auto"])
def test_calls_that_are_asked_for_follow_their_schemas(live_server: Live, choice: Any) -> None:
    """Temperature 1; whole and streamed answers with one seed are the same."""
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="none", max_retries=0) as client:
        for seed in range(3):
            asked: Any = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
                "tools": TOOLS,
                "tool_choice": choice,
                "parallel_tool_calls": False,
                "temperature": 1,
                "seed": seed,
                "max_tokens": 90,
            }
            whole = client.chat.completions.create(**asked).choices[0]
            chunks = [c.choices[0] for c in client.chat.completions.create(**asked, stream=True)]
            said = "".join(c.delta.content or "" for c in chunks)
            pieces = [t.function.arguments for c in chunks for t in c.delta.tool_calls or [] if t.function]
            assert said == (whole.message.content or "")
            assert "".join(p or "" for p in pieces) == "".join(
                c.function.arguments for c in whole.message.tool_calls or []
            )
            assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.finish_reason]
            given = arguments_of(whole.message)
            if choice == "auto":
                assert whole.finish_reason in {"stop", "length", "tool_calls"}
            else:
                assert (len(given), whole.finish_reason) == (1, "tool_calls")
                assert whole.message.content is None


def test_a_conversation_with_a_call_goes_on(live_server: Live) -> None:
    """What the client got can be sent back, with the tool's result."""
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
        asked: Any = {"model": "smollm2", "tools": TOOLS, "max_tokens": 60, "temperature": 0}
        first = (
            client.chat.completions.create(messages=messages, tool_choice=NAMED, **asked).choices[0].message
        )
        assert first.tool_calls
        messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "3 C, snow"}]
        answer = client.chat.completions.create(messages=messages, tool_choice="none", **asked)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason in {"stop", "length"}


def test_a_grammar_that_cannot_be_is_refused(live_server: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with (
        openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError),
    ):
        client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Hi"}],
            tools=tools,
            tool_choice="required",
        )


def test_the_tokens_of_a_conversation_with_calls_are_those_that_chat_reads(live_server: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages: Any = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    counted = httpx.post(live_server.url + "/tokenize", json={"messages": messages}, timeout=60).json()
    ask = {"messages": messages, "max_tokens": 1}
    answer = httpx.post(live_server.url + "/v1/chat/completions", json=ask, timeout=60).json()
    assert counted["count"] == answer["usage"]["prompt_tokens"] > 10
