"""One streaming request, and what is known of it afterwards.

Tokens come from the server's usage; an event may carry several, or none. Where a server gives no usage,
events with text are counted and the outcome says so.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from headrace.tools.bench.wire import Client, CutError, RefusedError

OVERLOADED = frozenset({429, 503})
HIDDEN = ("reasoning_content", "reasoning", "tool_calls")
"""Parts of a delta that took tokens to make, beside its content."""


class Failure(StrEnum):
    """Why a request counts as failed."""

    OVERLOADED = "overloaded"
    """Status 429 or 503: turned away."""
    REFUSED = "refused"
    """Another status than 200."""
    ERROR = "error"
    """An error inside the stream, or one that makes no sense."""
    CUT = "cut"
    """The stream ended without its end."""
    TIMEOUT = "timeout"
    """Not over within the time allowed."""
    CONNECTION = "connection"
    """No connection."""
    EMPTY = "empty"
    """Ended well without a token: there is nothing to measure."""


@dataclass(slots=True)
class Counts:
    """Tokens of one request."""

    prompt: int = 0
    output: int = 0
    cached: int = 0
    """Prompt tokens from the server's prefix cache, where it says so."""
    is_reported: bool = False
    """By the server; otherwise `output` counts events."""


@dataclass(slots=True)
class Outcome:
    """One request's times (seconds of the event loop's clock), tokens and fate."""

    due_s: float
    """When it should have been sent; latencies count from here (no coordinated omission)."""
    sent_s: float
    stamps_s: list[float] = field(default_factory=list[float])
    """When each event with text came."""
    end_s: float = 0.0
    counts: Counts = field(default_factory=Counts)
    text: str = ""
    tag: str = ""
    """Kind of request in a mixed load; the turn of a conversation."""
    failure: Failure | None = None
    detail: str = ""
    """What went wrong, in words."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How requests are put: the same for all of a load."""

    model: str
    is_chat: bool = True
    """Chat completions; otherwise completions, with the contents of all messages as the prompt."""
    timeout_s: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More fields of the body."""

    @property
    def path(self) -> str:
        """The endpoint."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> dict[str, Any]:
        """A request's body."""
        asked = (
            {"messages": list(messages)}
            if self.is_chat
            else {"prompt": "\n\n".join(message["content"] for message in messages)}
        )
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, **asked, "max_tokens": max_tokens, **stream, **self.extra}


async def ask(client: Client, path: str, body: Mapping[str, Any], timeout_s: float, due_s: float) -> Outcome:
    """Send a request now and read its answer to the end; failures are in the outcome, none is raised."""
    clock = asyncio.get_running_loop().time
    outcome = Outcome(due_s, clock())
    try:
        async with asyncio.timeout(timeout_s):
            await _read(client, path, body, outcome)
    except RefusedError as error:
        kind = Failure.OVERLOADED if error.status in OVERLOADED else Failure.REFUSED
        outcome.failure, outcome.detail = kind, str(error)
    except CutError as error:
        outcome.failure, outcome.detail = Failure.CUT, str(error)
    except TimeoutError:
        outcome.failure, outcome.detail = Failure.TIMEOUT, f"not over after {timeout_s:g} s"
    except OSError as error:
        outcome.failure, outcome.detail = Failure.CONNECTION, f"{type(error).__name__}: {error}"
    except ValueError as error:
        outcome.failure, outcome.detail = (
            Failure.ERROR,
            f"an event that is no JSON object, or of another shape: {error}",
        )
    outcome.end_s = clock()
    if outcome.failure is None and not outcome.stamps_s:
        outcome.failure, outcome.detail = Failure.EMPTY, "the answer has no token"
    if not outcome.counts.is_reported:
        outcome.counts.output = len(outcome.stamps_s)
    return outcome


async def _read(client: Client, path: str, body: Mapping[str, Any], outcome: Outcome) -> None:
    clock = asyncio.get_running_loop().time
    has_ended, pieces = False, list[str]()
    async for data in client.events(path, body):
        now = clock()
        if data == b"[DONE]":
            has_ended = True
            break
        event = _mapping(json.loads(data))
        if event.get("error"):
            outcome.failure, outcome.detail = Failure.ERROR, json.dumps(event["error"])[:300]
            break
        content, has_news, is_last = _news(event)
        has_ended = has_ended or is_last
        pieces.append(content)
        if has_news:
            outcome.stamps_s.append(now)
        _count(event, outcome.counts)
    outcome.text = "".join(pieces)
    if not has_ended and outcome.failure is None:
        raise CutError("the stream ended without a finish reason and without [DONE]")


def _news(event: Mapping[str, Any]) -> tuple[str, bool, bool]:
    """New content; whether anything is new (reasoning and calls too); whether a choice ended."""
    text, has_news, is_last = "", False, False
    for found in _list(event.get("choices") or []):
        choice = _mapping(found)
        delta = _mapping(choice.get("delta") or {})
        text += str(delta.get("content") or choice.get("text") or "")
        has_news = has_news or any(delta.get(name) for name in HIDDEN)
        is_last = is_last or bool(choice.get("finish_reason"))
    return text, has_news or bool(text), is_last


def _count(event: Mapping[str, Any], counts: Counts) -> None:
    usage = event.get("usage")
    if not usage:
        return
    usage = _mapping(usage)
    counts.prompt = _count_of(usage, "prompt_tokens")
    counts.output = _count_of(usage, "completion_tokens")
    counts.cached = _count_of(_mapping(usage.get("prompt_tokens_details") or {}), "cached_tokens")
    counts.is_reported = True


def _count_of(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name) or 0
    if not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise ValueError(f"{name} {str(value)[:80]!r} is no whole number")
    return int(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:80]!r} is no list")
    return cast("list[Any]", value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:80]!r} is no object")
    return cast("dict[str, Any]", value)
