"""Hostile HTTP bodies against the whole application: `python -m tests.fuzz.bodies --count 100000`.

Every answer must come within a second of computing, be no unannounced 5xx, and have the shape of its API's
errors; every stream must end as its API says.
"""

import argparse
import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from headrace.base.config import BatchConfig, EngineConfig, ServeConfig
from headrace.base.errors import ContextLengthError
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.outputs import RequestOutput, Usage
from headrace.serve.app import build_app
from headrace.serve.faults import MESSAGES_PATH
from tests.fuzz.mutate import mutate_json, odd_value, spell
from tests.serve.fake import FakeLLM, hello

MAX_CPU_S = 1.0
MAX_WALL_S = 20.0
"""Only what waits for something else than the processor comes near it."""
MAX_ERROR_BYTES = 4096

CHAT: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a town",
            "parameters": {
                "type": "object",
                "properties": {
                    "town": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
                    "days": {"type": "integer"},
                },
                "required": ["town"],
            },
        },
    }
]
CALLED: Any = [
    {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Bern"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
SCHEMA: Any = {
    "type": "object",
    "properties": {"a": {"enum": [1, "x"]}, "b": {"$ref": "#/$defs/b"}},
    "$defs": {"b": {}},
}
SAMPLING: Any = {
    "max_tokens": 3,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 1.0, "6": -100},
    "allowed_token_ids": [1, 2, 3],
    "bad_words": ["bad", "worse"],
    "seed": 4,
    "stop": ["\n", "END"],
    "stop_token_ids": [7, 8],
    "min_tokens": 1,
    "n": 2,
    "prompt_logprobs": 1,
    "truncate_prompt_tokens": 5,
    "priority": 1,
    "cache_salt": "salt",
    "return_token_ids": True,
    "timings": True,
    "metadata": {"a": "b"},
}
SEEDS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": CHAT},
        {"messages": CHAT, **SAMPLING, "logprobs": True, "top_logprobs": 2},
        {
            "messages": CHAT,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        {
            "messages": CALLED,
            "tools": TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "stream": True,
        },
        {
            "messages": CALLED,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        {
            "messages": CHAT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        },
        {"messages": CHAT, "structured_outputs": {"regex": "a+(b|c){2,3}"}},
        {
            "messages": CHAT,
            "structured_outputs": {"grammar": 'start: "a" | "b" start'},
            "reasoning_effort": "low",
        },
        {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True},
        {"messages": CHAT, "use_beam_search": True, "n": 2, "length_penalty": 1.1, "early_stopping": True},
    ],
    "/v1/completions": [
        {"prompt": "a b", "max_tokens": 2},
        {"prompt": [[5, 6], [7]], "max_tokens": 2, "echo": True, "logprobs": 1, "return_token_ids": True},
        {"prompt": ["a", "b"], **SAMPLING, "logprobs": 0, "stream": True},
        {"prompt": [5, 6], "structured_outputs": {"choice": ["yes", "no"]}, "best_of": 3, "n": 2},
        {
            "prompt": "a",
            "structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"},
            "response_format": {"type": "text"},
        },
    ],
    "/v1/embeddings": [
        {"input": "hi"},
        {"input": [[5, 6], [7]], "encoding_format": "base64", "dimensions": None, "user": "u"},
        {"input": ["a", "b"], "pooling": "mean", "normalize": True},
    ],
    "/v1/messages": [
        {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
        {
            "max_tokens": 40,
            "system": [{"type": "text", "text": "Brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": ""},
                        {"type": "tool_use", "id": "t", "name": "weather", "input": {"town": "Bern"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sunny"}],
                },
            ],
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            "stop_sequences": ["e"],
            "stream": True,
            "temperature": 0.5,
            "top_k": 4,
            "thinking": {"type": "disabled"},
            "output_config": {"effort": "low"},
        },
    ],
    "/v1/messages/count_tokens": [{"messages": [{"role": "user", "content": "hi"}], "system": "Brief."}],
    "/v1/responses": [
        {"input": "hi", "max_output_tokens": 3},
        {"input": "hi", "max_output_tokens": 3, "top_logprobs": 1, "metadata": {"a": "b"}, "stream": True},
        {
            "instructions": "Brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            ],
            "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}],
            "tool_choice": "required",
            "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
            "reasoning": {"effort": "low"},
            "stream": True,
        },
    ],
    "/tokenize": [{"prompt": "a b"}, {"messages": CHAT, "return_token_strs": True}],
    "/detokenize": [{"tokens": [5, 6]}],
}
"""Bodies that are answered with 200; every route that takes one."""
BATCHES: dict[str, list[dict[str, Any]]] = {
    "/v1/batches": [
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {},
        },
    ],
    "/v1/batches/batch_1/cancel": [{}],
    "/v1/files": [{"purpose": "batch", "file": "{}"}],
}
"""Bodies that are refused, as nobody has sent a file."""
PAGES = (
    "/health",
    "/ready",
    "/version",
    "/doctor",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/files",
    "/v1/batches",
)
NAMED = ("/v1/models/{}", "/v1/requests/{}", "/v1/files/{}", "/v1/files/{}/content", "/v1/batches/{}")
MAY_FAIL = frozenset({429, 503, 504})
"""Statuses of 500 and more, and of overload, that are announced."""

Ask = tuple[str, str, bytes, dict[str, str]]
"""Method, path, body, headers."""
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, content."""


@dataclass
class Tally:
    """What came of the bodies."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        by_status: Counter[int] = Counter()
        for (_, status), count in self.statuses.items():
            by_status[status] += count
        slowest = f"slowest {self.slowest_s * 1e3:.0f} ms"
        return f"{dict(sorted(by_status.items()))}, {slowest}, {len(self.faults)} faults"


class Engine(FakeLLM):
    """Answers everything; it has no limits but the length of a prompt."""

    async def embed(self, prompt: Any, kind: Any, **more: Any) -> RequestOutput:
        """A vector, the same for every prompt."""
        del kind
        if len(prompt) > 8 * self.max_model_len:
            raise ContextLengthError("the prompt is too long", param="prompt")
        return RequestOutput(
            request_id=more["request_id"],
            prompt_ids=(),
            choices=(),
            finished=True,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=0, cached_tokens=0),
            seed=0,
            pooled=np.ones(4, "<f4").tobytes(),
        )


class Target:
    """The application on an engine, spoken to without sockets."""

    def __init__(self, llm: Any = None) -> None:
        self.llm = llm or Engine(hello)
        self._folder = TemporaryDirectory(prefix="headrace-fuzz-")
        config = EngineConfig(
            serve=ServeConfig(max_body_bytes=1 << 20), batch=BatchConfig(dir=self._folder.name)
        )
        self.app, self.state = build_app(cast("AsyncLLM", self.llm), config)

    async def ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; the whole answer."""
        sent: list[Mapping[str, Any]] = []
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> Mapping[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            sent.append(message)

        given = {"host": "x", "content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(errors="replace"),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.encode(), v.encode("latin-1", "replace")) for k, v in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        run = cast("Callable[..., Awaitable[None]]", self.app)
        try:
            await run(scope, receive, send)
        except Exception:  # noqa: BLE001 - a server error is re-raised after its answer
            if not sent:
                return 500, {}, b"(no answer)"
        found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:])


def fault_of(path: str, answer: Answer) -> str | None:
    """What is wrong with an answer."""
    status, headers, content = answer
    if status >= 500 and status not in MAY_FAIL:
        return f"status {status}"
    if status >= 400:
        return _fault_of_error(path, status, headers, content)
    if status == 200 and path.startswith(("/v1/files/", "/v1/batches/")):
        return "a file or batch that nobody made"
    if headers.get("content-type", "").startswith("text/event-stream"):
        return _fault_of_stream(path, content)
    if headers.get("content-type") == "application/json":
        json.loads(content)
    return None


def _fault_of_error(path: str, status: int, headers: Mapping[str, str], content: bytes) -> str | None:
    if len(content) > MAX_ERROR_BYTES:
        return f"the error has {len(content)} bytes"
    if status in {429, 503} and "retry-after" not in headers:
        return f"{status} without Retry-After"
    error = json.loads(content)
    if path.startswith(MESSAGES_PATH):
        good = error.get("type") == "error" and set(error["error"]) == {"type", "message"}
    else:
        good = set(error) == {"error"} and set(error["error"]) == {"message", "type", "param", "code"}
    good = good and isinstance(error["error"]["message"], str) and error["error"]["message"]
    return None if good else f"the error has another shape: {content[:300]!r}"


def _fault_of_stream(path: str, content: bytes) -> str | None:
    data = [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]
    if path.startswith(MESSAGES_PATH):
        is_whole = json.loads(data[-1])["type"] == "message_stop"
    elif path == "/v1/responses":
        kinds = [json.loads(d)["type"] for d in data if d != "[DONE]"]
        is_whole = kinds[-1] in {"response.completed", "response.incomplete"}
    else:
        is_whole = data[-1] == "[DONE]"
        ends = Counter(
            choice["index"]
            for d in data[:-1]
            for choice in json.loads(d).get("choices", ())
            if choice["finish_reason"] is not None
        )
        is_whole = is_whole and bool(ends) and set(ends.values()) == {1}
    return None if is_whole else f"the stream does not end as it must: {content[-300:]!r}"


def draw(rng: Random) -> Ask:
    """A hostile request."""
    headers: dict[str, str] = {}
    if rng.random() < 0.05:
        name = rng.choice(
            ("x-request-id", "x-request-timeout", "content-length", "content-type", "authorization")
        )
        headers[name] = str(odd_value(rng))[:5000]
    if rng.random() < 0.03:
        path = rng.choice(PAGES + NAMED).replace("{}", str(odd_value(rng))[:200])
        return rng.choice(("GET", "DELETE", "POST", "PUT", "HEAD")), path, b"", headers
    seeds = BATCHES if rng.random() < 0.05 else SEEDS
    path = rng.choice(list(seeds))
    body: Any = rng.choice(seeds[path])
    if rng.random() < 0.2:  # a field that another body has
        other = rng.choice(SEEDS[rng.choice(list(SEEDS))])
        name = rng.choice(list(other))
        body = body | {name: other[name]}
    return "POST", path, spell(rng, mutate_json(rng, body, rng.choice((0, 1, 1, 1, 2, 2, 3, 5)))), headers


async def judge(target: Target, ask: Ask, tally: Tally, name: str) -> Answer:
    """Send a request; count the answer, and note what is wrong with it."""
    method, path, body, headers = ask
    answer: Answer = 0, {}, b""
    began_s = time.process_time()
    try:
        answer = await asyncio.wait_for(target.ask(method, path, body, headers), MAX_WALL_S)
        fault = fault_of(path, answer) if method != "HEAD" else None
    except TimeoutError:
        fault = "no answer"
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        fault = f"an answer that cannot be read: {error!r}: {answer[2][:300]!r}"
    took_s = time.process_time() - began_s
    tally.slowest_s = max(tally.slowest_s, took_s)
    tally.statuses[path if path in SEEDS else "other", answer[0]] += 1
    if took_s > MAX_CPU_S:
        fault = fault or f"{took_s:.1f} s of computing"
    if fault:
        tally.faults.append(f"{name} {method} {path[:80]} {headers or ''} {body[:600]!r}: {fault}")
    if isinstance(target.llm, FakeLLM):
        target.llm.seen.clear()
    return answer


async def run(count: int, seed: int, seconds: float = 1e9, target: Target | None = None) -> Tally:
    """Send bodies until `count` or `seconds` is reached; body i of a seed is always the same."""
    target = target or Target()
    tally = Tally()
    end_s = time.monotonic() + seconds
    for i in range(count):
        if time.monotonic() > end_s:
            break
        await judge(target, draw(Random(f"{seed}-{i}")), tally, f"{seed}-{i}")
    return tally


def keep_quiet() -> None:
    """For programs only: what the server logs of faults is told at the end, and tests read its log."""
    logging.getLogger("headrace.serve").setLevel(logging.CRITICAL)


def main() -> int:
    """Run for a count or a time; 1 when something was found."""
    keep_quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--engine", action="store_true", help="a real engine on a tiny model, not a scripted one"
    )
    given = parser.parse_args()
    if given.engine:
        from tests.fuzz.engines import run_engine as chosen
    else:
        chosen = run
    tally = asyncio.run(chosen(given.count, given.seed, given.seconds))
    print(f"{tally.statuses.total()} bodies: {tally}")
    print(*tally.faults[:20], sep="\n")
    return int(bool(tally.faults))


if __name__ == "__main__":
    raise SystemExit(main())
