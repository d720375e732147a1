"""Reasoning and calls of tools, spelled by `/v1/messages` and `/v1/responses`; both clients read them."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest

from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import ChoiceDelta
from headrace.host.text.parts.events import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from headrace.serve.dialects.blocks import Reply
from tests.serve.conftest import Live
from tests.serve.fake import FakeLLM, LiveServer, Seen
from tests.serve.test_messages import events as message_events
from tests.serve.test_responses import events as response_events

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
PARTS: list[tuple[Part, ...]] = [
    (),
    (Reasoning("Hm"),),
    (Reasoning("m."), Content("Let me ")),
    (Content("look."), CallBegin(0, "call_1", "weather"), CallArguments(0, '{"city": ')),
    (CallArguments(0, '"Paris"}'), CallEnd(0)),
    (CallBegin(1, "call_2", "time"), CallArguments(1, "{}"), CallEnd(1)),
]
MESSAGE_TOOLS: Any = [
    {"name": "weather", "description": "Weather.", "input_schema": SCHEMA},
    {"name": "time", "input_schema": {"type": "object", "properties": {}}},
]
RESPONSE_TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "Weather.", "parameters": SCHEMA, "strict": False},
    {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}},
]
CHAT: Any = [{"role": "user", "content": "Weather?"}]


def saying(parts: Sequence[tuple[Part, ...]], finish: str) -> Any:
    async def script(_: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        for some in parts:
            yield (ChoiceDelta(index=0, text="x", token_ids=(1, 2), parts=some),)
        yield (ChoiceDelta(index=0, finish_reason=finish, parts=()),)

    return script


def test_anthropics_client_reads_thinking_and_calls() -> None:
    with LiveServer(FakeLLM(saying(PARTS, "tool_calls"))) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
        ask: Any = {"model": "fake", "max_tokens": 50, "messages": CHAT, "tools": MESSAGE_TOOLS}
        whole = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            streamed = stream.get_final_message()
        for message in (whole, streamed):
            assert [block.model_dump(exclude_none=True) for block in message.content] == [
                {"type": "thinking", "thinking": "Hmm.", "signature": ""},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
                {"type": "tool_use", "id": "call_2", "name": "time", "input": {}},
            ]
            assert message.stop_reason == "tool_use"
        use = server.llm.seen[-1].options.tools
        assert next((t.name, t.description, t.parameters) for t in use.tools) == (
            "weather",
            "Weather.",
            SCHEMA,
        )


def test_openais_client_reads_reasoning_and_calls() -> None:
    with LiveServer(FakeLLM(saying(PARTS, "tool_calls"))) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
        ask: Any = {"model": "fake", "input": CHAT, "tools": RESPONSE_TOOLS}
        whole = client.responses.create(**ask)
        with client.responses.stream(**ask) as stream:
            streamed = stream.until_done().get_final_response()
        for response in (whole, streamed):
            assert response.status == "completed"
            output: list[Any] = list(response.output)
            reasoning, message, weather, time = output
            assert reasoning.type == "reasoning"
            assert reasoning.content is not None
            assert reasoning.content[0].text == "Hmm."
            assert message.type == "message"
            assert response.output_text == "Let me look."
            assert weather.type == time.type == "function_call"
            assert (weather.call_id, weather.name, weather.arguments) == (
                "call_1",
                "weather",
                '{"city": "Paris"}',
            )
            assert (time.call_id, time.arguments, time.status) == ("call_2", "{}", "completed")
            assert response.usage is not None
            assert response.usage.output_tokens_details.reasoning_tokens == 4
        assert whole.tools[0].model_dump(exclude_none=True) == RESPONSE_TOOLS[0]


def test_streams_open_and_close_every_block_once() -> None:
    with LiveServer(FakeLLM(saying(PARTS, "tool_calls"))) as server:
        ask: Any = {"max_tokens": 50, "messages": CHAT, "tools": MESSAGE_TOOLS, "stream": True}
        told = message_events(httpx.post(server.url + "/v1/messages", json=ask))
        order = [(e["type"], e["index"]) for e in told if "index" in e]
        for index in range(4):
            assert order.count(("content_block_start", index)) == 1
            assert order.count(("content_block_stop", index)) == 1
        assert order == sorted(order, key=lambda e: e[1])
        ask = {"input": CHAT, "tools": RESPONSE_TOOLS, "stream": True}
        told = response_events(httpx.post(server.url + "/v1/responses", json=ask))
        items = [e for e in told if e["type"].startswith("response.output_item")]
        assert [(e["type"][21:], e["output_index"]) for e in items] == [
            (kind, index) for index in range(4) for kind in ("added", "done")
        ]
        arguments = [e for e in told if e["type"].startswith("response.function_call_arguments")]
        assert [e.get("delta") or e["arguments"] for e in arguments] == [
            *('{"city": ', '"Paris"}', '{"city": "Paris"}'),
            *("{}", "{}"),
        ]


def test_a_call_cut_by_the_limit_is_not_a_finished_call() -> None:  # AP-5
    parts: list[tuple[Part, ...]] = [(CallBegin(0, "c", "weather"), CallArguments(0, '{"city": "Pa'))]
    with LiveServer(FakeLLM(saying(parts, "length"))) as server:
        ask: Any = {"max_tokens": 2, "messages": CHAT, "tools": MESSAGE_TOOLS}
        message = httpx.post(server.url + "/v1/messages", json=ask).json()
        assert (message["stop_reason"], message["content"][0]["input"]) == ("max_tokens", {})
        response = httpx.post(
            server.url + "/v1/responses", json={"input": CHAT, "tools": RESPONSE_TOOLS}
        ).json()
        assert response["status"] == "incomplete"
        assert response["output"][0]["status"] == "incomplete"
        assert response["output"][0]["arguments"] == '{"city": "Pa'


def test_a_whole_call_before_the_cut_is_whole() -> None:
    with LiveServer(FakeLLM(saying([*PARTS, (Content("And"),)], "length"))) as server:
        response = httpx.post(
            server.url + "/v1/responses", json={"input": CHAT, "tools": RESPONSE_TOOLS}
        ).json()
        assert [item["status"] for item in response["output"]] == [*["completed"] * 4, "incomplete"]


def test_the_blocks_do_not_depend_on_the_cutting() -> None:  # AP-4
    flat = [part for some in PARTS for part in some]

    def blocks(deltas: list[tuple[Part, ...]]) -> Any:
        reply = Reply()
        for some in deltas:
            reply._take(ChoiceDelta(index=0, text="", parts=some))
        reply._take(ChoiceDelta(index=0, parts=(), finish_reason="stop"))
        return [(b.kind, b.call_id, b.name, b.text, b.is_cut) for b in reply.blocks]

    whole = blocks([tuple(flat)])
    assert len(whole) == 4
    assert blocks([(part,) for part in flat]) == whole
    for cut in range(len(flat)):
        assert blocks([tuple(flat[:cut]), (), tuple(flat[cut:])]) == whole


def test_logprobs_of_held_tokens_come_with_the_text_and_those_of_reasoning_are_left_out() -> None:
    def token(number: int) -> TokenLogprobs:
        return TokenLogprobs(token_id=number, logprob=-1.0, rank=1, top_ids=(), top_logprobs=())

    reply = Reply()
    deltas: list[tuple[tuple[Part, ...], int]] = [
        ((), 1),
        ((Reasoning("a"),), 2),
        ((), 3),
        ((Content("b"),), 4),
        ((), 5),
        ((Content("c"),), 6),
    ]
    for parts, number in deltas:
        reply._take(ChoiceDelta(index=0, token_ids=(number,), logprobs=(token(number),), parts=parts))
    assert [t.token_id for t in reply.blocks[1].logprobs] == [4, 5, 6]
    assert reply.reasoning_tokens == 3


def test_turns_with_calls_and_results_go_back() -> None:
    with LiveServer(FakeLLM(saying([(Content("ok"),)], "stop"))) as server:
        turns = [
            *CHAT,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hmm.", "signature": ""},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "no"}]},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "gone", "is_error": True},
                    {"type": "text", "text": "And?"},
                ],
            },
        ]
        ask = {"max_tokens": 5, "messages": turns, "tools": MESSAGE_TOOLS}
        assert httpx.post(server.url + "/v1/messages", json=ask).status_code == 200
        call = {"name": "weather", "arguments": '{"city":"Paris"}'}
        wanted = [
            *CHAT,
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [{"id": "c1", "type": "function", "function": call}],
                "reasoning_content": "Hmm.",
            },
            {"role": "tool", "content": "no", "tool_call_id": "c1"},
            {"role": "tool", "content": "Error: gone", "tool_call_id": "c2"},
            {"role": "user", "content": "And?"},
        ]
        assert server.llm.seen[-1].prompt == wanted
        items = [
            *CHAT,
            {
                "type": "reasoning",
                "id": "r",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hmm."}],
            },
            {"role": "assistant", "content": "Let me look."},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Paris"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "no"},
            {"type": "function_call_output", "call_id": "c2", "output": "Error: gone"},
            {"role": "user", "content": "And?"},
        ]
        ask = {"input": items, "tools": RESPONSE_TOOLS}
        assert httpx.post(server.url + "/v1/responses", json=ask).status_code == 200
        assert server.llm.seen[-1].prompt == wanted


@pytest.mark.parametrize(
    ("path", "more", "wanted"),
    [
        ("messages", {"tool_choice": {"type": "none"}}, {"mode": "none"}),
        (
            "messages",
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"parallel": False},
        ),
        ("responses", {"tool_choice": "none"}, {"mode": "none"}),
        ("responses", {"parallel_tool_calls": False}, {"parallel": False}),
        ("messages", {"thinking": {"type": "disabled"}}, {"effort": "none"}),
        ("messages", {"thinking": {"type": "adaptive", "display": "omitted"}}, {"shows_reasoning": False}),
        ("messages", {"output_config": {"effort": "low"}}, {"effort": "low"}),
        ("responses", {"reasoning": {"effort": "high"}}, {"effort": "high"}),
    ],
)
def test_manners_reach_the_engine(path: str, more: Any, wanted: dict[str, Any]) -> None:
    with LiveServer(FakeLLM(saying([(Content("ok"),)], "stop"))) as server:
        bodies: dict[str, Any] = {
            "messages": {"max_tokens": 5, "messages": CHAT, "tools": MESSAGE_TOOLS},
            "responses": {"input": CHAT, "tools": RESPONSE_TOOLS},
        }
        answer = httpx.post(f"{server.url}/v1/{path}", json=bodies[path] | more)
        assert answer.status_code == 200, answer.text
        options = server.llm.seen[-1].options
        for name, value in wanted.items():
            assert getattr(options.tools if hasattr(options.tools, name) else options, name) == value


@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("messages", {"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0]"),
        ("messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools"),
        ("messages", {"tool_choice": {"type": "tool"}}, "tool_choice"),
        ("messages", {"tool_choice": {"type": "tool", "name": "no"}, "tools": MESSAGE_TOOLS}, "no"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ("responses", {"tools": [{"type": "function", "name": "a b"}]}, "tools[0]"),
        ("responses", {"tool_choice": {"type": "function", "name": "no"}, "tools": RESPONSE_TOOLS}, "no"),
    ],
)
def test_bad_tools_are_refused_by_name(path: str, more: Any, message: str) -> None:
    with LiveServer(FakeLLM(saying([(Content("ok"),)], "stop"))) as server:
        bodies: dict[str, Any] = {
            "messages": {"max_tokens": 5, "messages": CHAT},
            "responses": {"input": CHAT},
        }
        answer = httpx.post(f"{server.url}/v1/{path}", json=bodies[path] | more)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
        assert server.llm.seen == []


def test_both_apis_hold_the_text_to_a_schema(live_server: Live) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
    ask: Any = {"seed": 1, "temperature": 1.0}
    form = {"type": "json_schema", "name": "number", "schema": schema}
    body = ask | {"input": "A number?", "max_output_tokens": 60, "text": {"format": form}}
    response = httpx.post(live_server.url + "/v1/responses", json=body, timeout=60).json()
    texts = [response["output"][0]["content"][0]["text"]]
    form = {"type": "json_schema", "schema": schema}
    messages = [{"role": "user", "content": "A number?"}]
    body = ask | {"messages": messages, "max_tokens": 60, "output_config": {"format": form}}
    texts.append(
        httpx.post(live_server.url + "/v1/messages", json=body, timeout=60).json()["content"][0]["text"]
    )
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
    for path, bad in (("responses", "text"), ("messages", "output_config")):
        form = {"type": "json_schema", "name": "n", "schema": {"type": 5}}
        body = {"input": "x", "text": {"format": form}}
        if path == "messages":
            del form["name"]
            body = {"messages": messages, "max_tokens": 5, "output_config": {"format": form}}
        refused = httpx.post(f"{live_server.url}/v1/{path}", json=body, timeout=60)
        assert refused.status_code == 400
        assert bad in refused.json()["error"]["message"]
