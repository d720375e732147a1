"""The description of the API (OpenAPI 3.1), made from the routes and the models of their bodies."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from headrace import __version__
from headrace.base.request import MAX_CHOICES, MAX_LOGPROBS
from headrace.serve.described.errors import ErrorAnswer, MessageErrorAnswer
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import MESSAGES_PATH
from headrace.serve.front.gate import MAX_TIMEOUT_S, OPEN_PATHS
from headrace.serve.schema.bounds import LIST_LIMITS, TEXT_LIMITS

RANGES: Mapping[str, dict[str, float]] = {
    "temperature": {"minimum": 0, "maximum": 100},
    "top_k": {"minimum": -1},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repetition_penalty": {"minimum": 0.01, "maximum": 10},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "seed": {"minimum": 0, "maximum": 2**63 - 1},
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
    "max_tokens": {"minimum": 1},
    "max_completion_tokens": {"minimum": 1},
    "max_output_tokens": {"minimum": 1},
    "min_tokens": {"minimum": 0},
    "truncate_prompt_tokens": {"minimum": -1},
    "top_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
    "prompt_logprobs": {"minimum": 0, "maximum": MAX_LOGPROBS},
}
"""Numbers that are checked behind the models, in `base/request`."""
_COUNTS = {"array": "maxItems", "object": "maxProperties"}
_HINTS = {
    401: "no API key, or the wrong one",
    404: "no such model, request or file",
    408: "the body did not arrive in time",
    413: "the body is too large",
    429: "overloaded; the header Retry-After says how many seconds to wait",
    499: "the request was cancelled",
    503: "the engine is not running, or the server is stopping",
    504: "the deadline that the request brought has passed",
}
_RETRY = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}}}
_RETRIED = frozenset({429, 503})
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The description of these endpoints."""
    found = list(endpoints)
    schemas, references = _schemas(found)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in found:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": "Large language models behind the APIs of OpenAI and Anthropic.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # A server without keys is open: hence the empty alternative.
        "security": [{"bearer": []}, {"header": []}, {}],
    }


def _schemas(endpoints: list[Endpoint]) -> tuple[dict[str, Any], dict[type[BaseModel], dict[str, Any]]]:
    """All models by name, and the reference of each."""
    models: list[type[BaseModel]] = [ErrorAnswer, MessageErrorAnswer]
    models += [m for e in endpoints for m in (e.about.body, e.about.answer) if m is not None]
    unique = list(dict.fromkeys(models))
    made, whole = models_json_schema(
        [(model, "validation") for model in unique], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = whole["$defs"]
    references: dict[type[BaseModel], dict[str, Any]] = {
        model: dict(made[model, "validation"]) for model in unique
    }
    for endpoint in endpoints:
        if endpoint.about.body is not None:
            _complete(schemas[references[endpoint.about.body]["$ref"].rpartition("/")[2]], endpoint.about)
    return dict(sorted(schemas.items())), references


def _complete(schema: dict[str, Any], about: About) -> None:
    """Add what the model does not say: ranges, counts, and fields of which only some values pass."""
    properties: dict[str, Any] = schema["properties"]
    by_hand = about.body.counted_by_hand if about.body is not None else ()
    for name, field in properties.items():
        for form in field.get("anyOf") or field.get("oneOf") or [field]:
            kind = form.get("type")
            if kind in {"number", "integer"}:
                form.update(RANGES.get(name, {}))
            elif kind in _COUNTS and name in LIST_LIMITS and name not in by_hand:
                form[_COUNTS[kind]] = LIST_LIMITS[name]
            elif kind == "string" and name in TEXT_LIMITS:
                form["maxLength"] = TEXT_LIMITS[name]
    for name, values in about.neutral.items():
        properties[name] = {
            "enum": list(values),
            "description": "Not supported: only values that ask for nothing pass.",
        }


def _operation(endpoint: Endpoint, references: Mapping[type[BaseModel], dict[str, Any]]) -> dict[str, Any]:
    about = endpoint.about
    made: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()} {endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _PARAMETER.findall(endpoint.path)
        ]
        + [
            {"name": name, "in": "query", "required": False, "schema": dict(schema)}
            for name, schema in about.query.items()
        ],
        "responses": _responses(endpoint, references),
    }
    if endpoint.path in OPEN_PATHS:
        made["security"] = []
    if 429 in about.errors and about.body is not None:
        made["parameters"] += [
            _header(
                "X-Request-Id", "id of the request when the body has no `request_id`", {"type": "string"}
            ),
            _header(
                "X-Request-Timeout",
                "seconds after which the answer is not wanted any more",
                {"type": "number", "exclusiveMinimum": 0, "maximum": int(MAX_TIMEOUT_S)},
            ),
        ]
    if about.body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[about.body]}},
        }
    return made


def _header(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": text, "schema": schema}


def _responses(endpoint: Endpoint, references: Mapping[type[BaseModel], dict[str, Any]]) -> dict[str, Any]:
    about = endpoint.about
    content: dict[str, Any] = {about.media_type: {"schema": {"type": "string"}}}
    if about.answer is not None:
        content = {about.media_type: {"schema": references[about.answer]}}
    good = {"description": "the answer", "content": content}
    if about.streams:
        events = {"type": "string", "description": "server-sent events, when the body says `stream`"}
        good = good | {"content": content | {"text/event-stream": {"schema": events}}}
    made: dict[str, Any] = {"200": good}
    for status in about.also:
        made[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    is_message = endpoint.path.startswith(MESSAGES_PATH)
    shape = references[MessageErrorAnswer if is_message else ErrorAnswer]
    for status in about.errors:
        made[str(status)] = {
            "description": _HINTS.get(status) or HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": shape}},
            **({"headers": _RETRY} if status in _RETRIED else {}),
        }
    return made
