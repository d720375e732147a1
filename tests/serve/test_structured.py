"""Structured output over HTTP: the official client, vLLM's spelling, what is refused, what is counted."""

import json
import re
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.serve.conftest import Live

MESSAGES: Any = [{"role": "user", "content": "Describe Alice, who is thirty and likes tea, as JSON."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@pytest.fixture
def client(live_server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live_server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def ask(live: Live, path: str = "completions", **more: Any) -> httpx.Response:
    body = {"prompt": "Answer: ", "max_tokens": 40, "seed": 3}
    if path != "completions":
        body = {"messages": MESSAGES, "max_tokens": 120, "seed": 3}
    return httpx.post(f"{live.url}/v1/{path}", json=body | more, timeout=60)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    return choice["text"] if "text" in choice else choice["message"]["content"]


def metric(live: Live, name: str) -> float:
    lines = httpx.get(live.url + "/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name + "_total ")).split()[1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_holds_whole_and_streamed(client: openai.OpenAI, temperature: float) -> None:
    given: Any = {
        "model": "smollm2",
        "messages": MESSAGES,
        "response_format": FORMAT,
        "temperature": temperature,
        "seed": 7,
        "n": 2,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**given)
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PERSON)
    texts = ["", ""]
    for chunk in client.chat.completions.create(**given, stream=True):
        for part in chunk.choices:
            texts[part.index] += part.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_the_client_parses_a_model(client: openai.OpenAI) -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), is_tall=(bool, ...))
    answer = client.chat.completions.parse(
        model="smollm2", messages=MESSAGES, response_format=person, max_tokens=200, temperature=0
    )
    parsed: Any = answer.choices[0].message.parsed
    assert isinstance(parsed.is_tall, bool)


def test_json_mode_gives_an_object(live_server: Live) -> None:
    answer = ask(
        live_server,
        "chat/completions",
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=400,
    )
    choice = answer.json()["choices"][0]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_every_spelling_of_vllm(live_server: Live) -> None:
    def outputs(**given: Any) -> str:
        return text(ask(live_server, structured_outputs=given))

    assert re.fullmatch(r"\d{3}-\d{4}", outputs(regex=r"\d{3}-\d{4}"))
    assert outputs(choice=["yes", "no"]) in {"yes", "no"}
    assert re.fullmatch("a(bb){1,3}c", outputs(grammar='start: "a" more~1..3 "c"\nmore: "bb"'))
    assert outputs(grammar='root ::= "x" [0-9]')[0] == "x"
    tight = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
        "required": ["a", "b"],
    }
    closed = outputs(json=tight, disable_any_whitespace=True, disable_additional_properties=True)
    assert closed in {'{"a":true,"b":null}', '{"a":false,"b":null}'}
    spaced = outputs(json=json.dumps(tight), whitespace_pattern=" ", disable_additional_properties=True)
    assert "  " not in spaced
    assert json.loads(spaced)["b"] is None


HOSTILE: list[dict[str, Any]] = [
    {"regex": "("},
    {"regex": "*a"},
    {"regex": "(" * 60_000},
    {"regex": "(?=a)a"},
    {"regex": r"(a)\1"},
    {"regex": ""},
    {"regex": "a" * 300_000},
    {"choice": []},
    {"choice": [""]},
    {"choice": ["x"] * 5000},
    {"grammar": "start: nothing"},
    {"grammar": "start: " + "(" * 1000},
    {"grammar": "no grammar at all"},
    {"grammar": "root ::= ("},
    {"json": {"type": 5}},
    {"json": {"type": "array", "uniqueItems": True}},
    {"json": {"$ref": "http://example.com/schema"}},
    {"json": {"$ref": "#"}},
    {"json": {"type": "integer", "multipleOf": 1234567}},
    {"json": {"type": "number", "multipleOf": 1e-30}},
    {"json": {"patternProperties": {f"^(a|b){{{i}}}c$": {} for i in range(40)}}},
    {"json": '{"a": ' * 60_000},
    {"json": "{"},
    {"json": False},
    {"json": {"type": "string", "pattern": "("}},
    {"json": {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(4)]} for i in range(8)]}},
    {"regex": "a", "choice": ["b"]},
    {},
    {"regex": "a", "disable_any_whitespace": True},
    {"json": {}, "whitespace_pattern": "("},
    {"json": {}, "structural_tag": "x"},
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_what_cannot_be_used_is_refused_and_others_go_on(live_server: Live, number: int) -> None:
    """FIELD_LESSONS 16: vllm#17313, CVE-2025-48944, llama.cpp#26600, sglang#7639."""
    response = ask(live_server, structured_outputs=HOSTILE[number])
    assert response.status_code == 400, response.text[:300]
    error = response.json()["error"]
    assert error["param"] == "structured_outputs"
    assert 10 < len(error["message"]) < 1500
    assert text(ask(live_server, structured_outputs={"choice": ["ok"]})) == "ok"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"guided_json": {}}, "guided_json"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_grammar": "a"}, "guided_grammar"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_contradictions_and_old_names_are_refused_by_name(live_server: Live, given: Any, param: str) -> None:
    error = ask(live_server, **given).json()["error"]
    assert error["param"] == param
    if param.startswith("guided_"):
        assert "structured_outputs" in error["message"]


def test_what_leads_nowhere_ends_with_an_error(live_server: Live) -> None:
    response = ask(live_server, structured_outputs={"regex": "ab"}, min_tokens=20)
    assert response.status_code == 400
    assert "no token may be drawn" in response.json()["error"]["message"]


def test_compilations_and_ready_grammars_are_counted(live_server: Live) -> None:
    before = (
        metric(live_server, "headrace_grammar_cache_hits"),
        metric(live_server, "headrace_grammars_compiled"),
    )
    for _ in range(3):
        text(ask(live_server, structured_outputs={"regex": "[a-c]{2}[0-9]"}))
        assert ask(live_server, structured_outputs={"regex": "[a-c"}).status_code == 400
    assert metric(live_server, "headrace_grammar_cache_hits") > before[0]
    assert metric(live_server, "headrace_grammars_compiled") == before[1] + 3
    assert metric(live_server, "headrace_grammar_compilation_time_seconds") > 0


def test_a_schema_beside_tools_gives_one_or_the_other(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}}
    function = {"name": "weather", "parameters": parameters}
    answer = client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        tools=[{"type": "function", "function": function}],  # type: ignore[list-item]
        response_format=FORMAT,
        n=4,
        seed=5,
        max_tokens=200,
    )
    for choice in answer.choices:
        for call in choice.message.tool_calls or ():
            jsonschema.validate(json.loads(call.function.arguments), parameters)  # type: ignore[union-attr]
        if not choice.message.tool_calls:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content or ""), PERSON)


def test_a_schema_and_a_call_that_must_come_are_refused(live_server: Live) -> None:
    function = {"name": "weather", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    given: Any = {"tools": tools, "tool_choice": "required", "response_format": FORMAT}
    refused = ask(live_server, "chat/completions", **given)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"
