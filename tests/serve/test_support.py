"""Field lesson AP-7: every documented field of the clients has an effect, or is refused by name."""

from typing import Any

import httpx
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from headrace.serve.app import ROUTE_FILES
from headrace.serve.endpoint import Endpoint
from headrace.serve.schema.support import LABELS
from tests.serve.conftest import Live

HELLO: Any = [{"role": "user", "content": "Say something about the sea."}]
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_completion_tokens": 8, "seed": 1},
    "/v1/completions": {"prompt": "The sea is", "max_tokens": 8, "seed": 1},
    "/v1/responses": {"input": HELLO, "max_output_tokens": 8, "seed": 1},
    "/v1/messages": {"messages": HELLO, "max_tokens": 8, "seed": 1},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/embeddings": {"input": "The sea"},
}
PARAMS: dict[str, Any] = {
    "/v1/chat/completions": chat_create_params.CompletionCreateParamsBase,
    "/v1/completions": completion_create_params.CompletionCreateParamsBase,
    "/v1/responses": response_create_params.ResponseCreateParamsBase,
    "/v1/messages": message_create_params.MessageCreateParamsBase,
    "/v1/messages/count_tokens": message_count_tokens_params.MessageCountTokensParams,
    "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
}
TOOL: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TRIES: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "background": True,
    "background_options": {"completion_window": "2h"},
    "best_of": 3,
    "container": "c",
    "context_management": [{"type": "compaction"}],
    "conversation": "c",
    "diagnostics": {},
    "dimensions": 8,
    "echo": True,
    "encoding_format": "base64",
    "frequency_penalty": 2.0,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "image": {"context_compression": "enabled"},
    "include": ["message.output_text.logprobs"],
    "inference_geo": "eu",
    "input": "Another text",
    "instructions": "Answer in French.",
    "logit_bias": {"260": 100},
    "logprobs": True,
    "max_completion_tokens": 3,
    "max_output_tokens": 3,
    "max_tokens": 3,
    "max_tool_calls": 1,
    "messages": [{"role": "user", "content": "Name a number."}],
    "access_programs": {"cyber": "standard"},
    "modalities": ["text", "audio"],
    "model": "gpt-9",
    "moderation": {"model": "m"},
    "n": 2,
    "output_config": {"effort": "low"},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 2.0,
    "previous_response_id": "r",
    "prompt": "Another text",
    "prompt_cache_options": {"mode": "explicit"},
    "reasoning": {"effort": "high"},
    "reasoning_effort": "high",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "seed": 2,
    "service_tier": "flex",
    "speed": "fast",
    "stop": "e",
    "stop_sequences": ["e"],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "suffix": "end",
    "system": "Answer in French.",
    "temperature": 0.0,
    "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tool_choice": "required",
    "tools": [{"type": "function", "function": TOOL}],
    "top_logprobs": 2,
    "top_p": 0.01,
    "truncation": "auto",
    "user_profile_id": "u",
    "verbosity": "low",
    "web_search_options": {},
    "workspace_id": "w",
}
OTHER: dict[tuple[str, str], Any] = {
    ("/v1/completions", "logprobs"): 2,
    ("/v1/completions", "prompt"): "Mountains are",
    ("/v1/responses", "prompt"): {"id": "p"},
    ("/v1/responses", "tools"): [{"type": "function"} | TOOL],
    ("/v1/messages", "tools"): [{"name": "look", "input_schema": TOOL["parameters"]}],
    ("/v1/messages/count_tokens", "tools"): [{"name": "look", "input_schema": TOOL["parameters"]}],
    ("/v1/messages", "tool_choice"): {"type": "any"},
    ("/v1/messages/count_tokens", "tool_choice"): {"type": "any"},
}
REPEATS: dict[str, Any] = {"prompt": "one two one two one two one", "temperature": 0}
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/chat/completions", "stream_options"): {"stream": True},
    ("/v1/completions", "stream_options"): {"stream": True},
    ("/v1/chat/completions", "top_logprobs"): {"logprobs": True},
    ("/v1/chat/completions", "presence_penalty"): {"temperature": 0, "max_completion_tokens": 60},
    ("/v1/chat/completions", "frequency_penalty"): {"temperature": 0, "max_completion_tokens": 60},
    ("/v1/completions", "presence_penalty"): REPEATS,
    ("/v1/completions", "frequency_penalty"): REPEATS,
}
"""What a field needs beside it to be allowed."""
HINTS = {*LABELS, "cache_control"}
"""Documented as changing no answer."""
ELSEWHERE = {"parallel_tool_calls"}
"""Needs an answer with several calls: tested where answers are scripted."""
VOLATILE = ("id", "created", "created_at", "completed_at")


def about(path: str) -> Endpoint:
    routes = [r for routes in ROUTE_FILES.all().values() for r in routes if isinstance(r, Endpoint)]
    return next(r for r in routes if r.path == path)


def fields_of(path: str) -> list[str]:
    return sorted(PARAMS[path].__annotations__)


def answer(live: Live, path: str, body: dict[str, Any]) -> Any:
    got = httpx.post(live.url + path, json=body, timeout=60)
    if got.headers["content-type"].startswith("text/event-stream"):
        return got.status_code, [line.split(":")[0] for line in got.text.splitlines()]
    made = got.json()
    for name in VOLATILE:
        made.pop(name, None)
    made.pop("seed", None)
    if "usage" in made:  # the same prompt is cached the second time
        for name in ("prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"):
            if name in made["usage"]:
                del made["usage"][name]
        if path == "/v1/messages":
            del made["usage"]["input_tokens"]
    if made.get("object") == "response":  # it repeats what was asked; that is no effect
        made = {name: made[name] for name in ("status", "output", "usage")}
        for item in made["output"]:
            del item["id"]
    return got.status_code, made


@pytest.fixture(scope="module")
def baselines() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in PARAMS for name in fields_of(path) if name not in ELSEWHERE]
)
def test_a_documented_field_has_an_effect_or_is_refused(
    live_server: Live, baselines: dict[str, Any], path: str, name: str
) -> None:
    endpoint = about(path)
    assert endpoint.about.body is not None
    assert name in {*endpoint.about.body.model_fields, *endpoint.about.neutral}, "not in the table of support"
    base = BASE[path] | NEEDS.get((path, name), {})
    if name == "max_tokens":
        base = {k: v for k, v in base.items() if k != "max_completion_tokens"}
    if name in HINTS:
        hint = {"metadata": {"user_id": "a"}, "prompt_cache_retention": "24h"}.get(name, "text")
        value = {"type": "ephemeral"} if name == "cache_control" else hint
        assert answer(live_server, path, base | {name: value}) == answer(live_server, path, base)
        return
    value = OTHER.get((path, name), TRIES[name])
    status, got = answer(live_server, path, base | {name: value})
    if status != 200:
        assert status == (404 if name == "model" else 400), got
        if "param" in got["error"]:
            assert got["error"]["param"] == name
        assert name in got["error"]["message"] or name == "model", got["error"]["message"]
        return
    assert name not in endpoint.about.neutral
    key = str((path, sorted(base)))
    if key not in baselines:
        baselines[key] = answer(live_server, path, base)
    assert (status, got) != baselines[key], "accepted and ignored"
