"""The description of the API: valid, complete, and what the server really does."""

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis

from headrace.base.config import AccessConfig
from headrace.base.errors import HeadraceError
from headrace.serve.app import ROUTE_FILES
from headrace.serve.endpoint import Endpoint
from headrace.serve.openapi import RANGES, describe
from tests.serve.conftest import Live
from tests.serve.fake import FakeLLM, LiveServer, hello

ROUTES = [route for routes in ROUTE_FILES.all().values() for route in routes]
CHAT: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ASKS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHAT,
        CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, "prompt_logprobs": 1},
    ],
    "/v1/completions": [
        {"prompt": "a b", "max_tokens": 2},
        {"prompt": [[5, 6], [7]], "max_tokens": 2, "echo": True, "logprobs": 1, "return_token_ids": True},
        {"prompt": ["a"], "max_tokens": 2, "prompt_logprobs": 2, "logprobs": 0},
    ],
    "/v1/embeddings": [{"input": "hi"}, {"input": [[5, 6]], "encoding_format": "base64"}],
    "/v1/messages": [CHAT, CHAT | {"stop_sequences": ["e"], "max_tokens": 40}],
    "/v1/messages/count_tokens": [{"messages": CHAT["messages"], "system": "Brief."}],
    "/v1/responses": [
        {"input": "hi", "max_output_tokens": 3},
        {"input": "hi", "max_output_tokens": 3, "top_logprobs": 1, "metadata": {"a": "b"}, "user": "u"},
    ],
    "/tokenize": [{"prompt": "a b"}, {"messages": CHAT["messages"], "return_token_strs": True}],
    "/detokenize": [{"tokens": [5, 6]}],
}


@pytest.fixture(scope="module")
def fake() -> Iterator[LiveServer]:
    with LiveServer(FakeLLM(hello)) as server:
        yield server


def description() -> dict[str, Any]:
    return describe(route for route in ROUTES if isinstance(route, Endpoint))


def check(value: Any, response: dict[str, Any], whole: dict[str, Any]) -> None:
    """The value is exactly what the description says: also without a field it does not name."""
    strict = copy.deepcopy(whole["components"])
    for schema in strict["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    schema = response["content"]["application/json"]["schema"] | {"components": strict}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_the_description_is_valid_and_the_server_gives_it(fake: LiveServer) -> None:
    got = httpx.get(fake.url + "/openapi.json").json()
    schemathesis.openapi.from_dict(got).validate()
    assert got == description()
    for schema in got["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_routes_and_description_agree() -> None:
    plain = [route for route in ROUTES if not isinstance(route, Endpoint)]
    assert not plain, "make these routes an Endpoint with an About, so that they are described"
    described = {(path, method) for path, methods in description()["paths"].items() for method in methods}
    assert described == {
        (route.path.replace(":path}", "}"), route.method.lower())
        for route in ROUTES
        if isinstance(route, Endpoint)
    }


def test_every_endpoint_with_a_body_is_tried() -> None:
    bodies = {r.path for r in ROUTES if isinstance(r, Endpoint) and r.about.body is not None}
    assert bodies - {"/v1/batches"} == set(ASKS)  # it needs a file: tests/serve/test_batches.py


@pytest.mark.parametrize("path", ASKS)
def test_answers_are_as_described(live_server: Live, path: str) -> None:
    whole = description()
    operation = whole["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"] | {
        "components": whole["components"]
    }
    for ask in ASKS[path]:
        jsonschema.Draft202012Validator(body).validate(ask)
        answer = httpx.post(live_server.url + path, json=ask, timeout=60)
        assert answer.status_code == 200, answer.text
        check(answer.json(), operation["responses"]["200"], whole)
        if "text/event-stream" in operation["responses"]["200"]["content"]:
            stream = httpx.post(live_server.url + path, json=ask | {"stream": True}, timeout=60)
            assert stream.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/version", "/doctor", "/v1/models", "/v1/models/fake"]
)
def test_pages_are_as_described(fake: LiveServer, path: str) -> None:
    whole = description()
    operation = whole["paths"][path.replace("models/fake", "models/{name}")]["get"]
    check(httpx.get(fake.url + path).json(), operation["responses"]["200"], whole)


@pytest.mark.parametrize("path", ASKS)
def test_errors_are_as_described(fake: LiveServer, path: str) -> None:
    whole = description()
    responses = whole["paths"][path]["post"]["responses"]
    asked = ASKS[path][0]
    tries: list[tuple[int, Any]] = [
        (400, httpx.post(fake.url + path, content=b"{")),
        (400, httpx.post(fake.url + path, json=asked | {"nonsense": 1})),
        (404, httpx.post(fake.url + path, json=asked | {"model": "gpt-9"})),
    ]
    with LiveServer(FakeLLM(hello), AccessConfig(api_key=("k",)), max_body_bytes=10) as server:
        tries.append((401, httpx.post(server.url + path, json=asked)))
        key = {"authorization": "Bearer k"}
        tries.append((413, httpx.post(server.url + path, json=asked, headers=key)))
        if "503" in responses:
            server.state.draining = True
            tries.append((503, httpx.post(server.url + path, json=asked, headers=key)))
    for status, answer in tries:
        assert answer.status_code == status, answer.text
        check(answer.json(), responses[str(status)], whole)


def paths_with(name: str) -> list[str]:
    return [
        r.path
        for r in ROUTES
        if isinstance(r, Endpoint) and r.about.body is not None and name in r.about.body.model_fields
    ]


@pytest.mark.parametrize(("name", "path"), [(name, path) for name in RANGES for path in paths_with(name)])
def test_ranges_are_those_of_the_engine(fake: LiveServer, name: str, path: str) -> None:
    def status(value: float) -> int:
        more = {"logprobs": True} if name == "top_logprobs" and "chat" in path else {}
        body = ASKS[path][0] | more | {name: value}
        if name == "max_completion_tokens":
            del body["max_tokens"]
        return httpx.post(fake.url + path, json=body).status_code

    bounds = RANGES[name]
    step = 1 if isinstance(next(iter(bounds.values())), int) and name not in {"top_p", "min_p"} else 0.001
    if "minimum" in bounds:
        assert status(bounds["minimum"]) == 200
        assert status(bounds["minimum"] - step) == 400
    else:
        assert status(bounds["exclusiveMinimum"] + step) == 200
        assert status(bounds["exclusiveMinimum"]) == 400
    if "maximum" in bounds:
        assert status(bounds["maximum"]) == 200
        assert status(bounds["maximum"] + step) == 400


def test_every_status_of_an_error_is_described() -> None:
    def below(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    # 499 is for a client that is gone; only `/v1/messages` has it for one that listens. 416 is for files.
    known = {status for r in ROUTES if isinstance(r, Endpoint) for status in r.about.errors}
    assert {kind.http_status for kind in below(HeadraceError)} == known
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
    ):
        assert known - {416, 499} <= set(next(r for r in ROUTES if r.path == path).about.errors)  # type: ignore[attr-defined]
