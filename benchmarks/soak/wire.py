"""One request over a connection of its own: what came back, to the last byte, and how it ended."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.client import post
from benchmarks.soak.asks import CHAT, COMPLETION, MESSAGES, Ask

LIMIT_S = 120.0
"""No request of a soak takes longer, unless it hangs."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a request ended. Times are `time.monotonic()` seconds; `first` is 0 when no token came."""

    kind: str
    path: str
    start: float
    first: float = 0.0
    end: float = 0.0
    status: int = 0
    retry_after: float | None = None
    code: str = ""
    """Of the error, in the status or as an event."""
    ends: Counter[int] = field(default_factory=Counter[int])
    """Finish reasons by choice."""
    errors: int = 0
    """Error events."""
    markers: int = 0
    """Ends of the stream, each API's own."""
    left: bool = False
    wrong: str = ""
    """What must not happen."""
    text: str = ""


async def send(host: str, port: int, ask: Ask) -> Outcome:
    """Send a request, read all of the answer, judge it."""
    outcome = Outcome(kind=ask.kind, path=ask.path, start=time.monotonic())
    try:
        async with asyncio.timeout(LIMIT_S if ask.leave_s is None else ask.leave_s):
            await _exchange(host, port, ask, outcome)
    except TimeoutError:
        outcome.left = ask.leave_s is not None
        if not outcome.left:
            outcome.wrong = f"no end within {LIMIT_S:g} s"
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        outcome.wrong = f"{type(error).__name__}: {error}"
    outcome.end = time.monotonic()
    if not (outcome.left or outcome.wrong):
        outcome.wrong = judge(ask, outcome)
    return outcome


async def _exchange(host: str, port: int, ask: Ask, outcome: Outcome) -> None:
    reader, writer = await post(host, port, ask.path, ask.body)
    try:
        await writer.drain()
        headers = await _head(reader, outcome)
        if outcome.status == 200 and ask.stream:
            await _stream(reader, ask, outcome)
            return
        body = await reader.read(-1)
        if len(body) != int(headers.get("content-length", -1)):
            raise ValueError(f"{len(body)} bytes of a body of {headers.get('content-length')}")
        _whole(ask, outcome, json.loads(body))
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader, outcome: Outcome) -> dict[str, str]:
    line = await reader.readline()
    if not line:
        raise ValueError("the connection was closed without an answer")
    outcome.status = int(line.split()[1])
    headers = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if "retry-after" in headers:
        outcome.retry_after = float(headers["retry-after"])
    return headers


async def _stream(reader: asyncio.StreamReader, ask: Ask, outcome: Outcome) -> None:
    last = b""
    while line := await reader.readline():  # sizes of chunks lie between the events
        last = line.strip() or last
        if not line.startswith(b"data:"):
            continue
        if outcome.markers:
            raise ValueError(f"an event after the end: {line[:200]!r}")
        data = line[5:].strip()
        if data == b"[DONE]":
            outcome.markers += 1
        else:
            _event(ask.path, json.loads(data), outcome)
    if last != b"0":
        raise ValueError(f"the stream was cut after {last[:200]!r}")


def _event(path: str, event: dict, outcome: Outcome) -> None:
    if path in (CHAT, COMPLETION):
        _choices(event.get("choices") or (), outcome)
        if "error" in event:
            outcome.errors += 1
            outcome.code = event["error"]["code"]
        return
    kind = event["type"]
    if kind.endswith(".delta") or kind == "content_block_delta":
        outcome.first = outcome.first or time.monotonic()
    elif kind == "error":
        outcome.errors += 1
        outcome.code = event.get("code") or event["error"]["type"]
        outcome.markers += path == MESSAGES  # nothing comes after it
    elif kind == "message_delta":
        outcome.ends[0] += event["delta"]["stop_reason"] is not None
    elif kind in ("response.completed", "response.incomplete", "response.failed"):
        outcome.ends[0] += 1
    outcome.markers += kind in (
        "message_stop",
        "response.completed",
        "response.incomplete",
        "response.failed",
    )


def _choices(choices: list, outcome: Outcome) -> None:
    for choice in choices:
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            outcome.first = outcome.first or time.monotonic()
        if choice["finish_reason"] is not None:
            outcome.ends[choice["index"]] += 1


def _whole(ask: Ask, outcome: Outcome, body: dict) -> None:
    outcome.first = time.monotonic() if outcome.status == 200 else 0.0
    if outcome.status != 200:
        error = body["error"]
        outcome.code = error.get("code") or error["type"]
    elif ask.path in (CHAT, COMPLETION):
        _choices(body["choices"], outcome)
        outcome.text = json.dumps([c.get("text") for c in body["choices"]] + [body["choices"][0]["logprobs"]])
    elif ask.path == MESSAGES:
        outcome.ends[0] += body["stop_reason"] is not None
    else:
        outcome.ends[0] += body["status"] in ("completed", "incomplete")


def judge(ask: Ask, outcome: Outcome) -> str:
    """What is wrong with an answer in itself; whether an overload or error may be is `verdict`'s affair."""
    status, told = outcome.status, f"{outcome.status} {outcome.code}"
    if status in (429, 503):
        return f"{told} without Retry-After" if outcome.retry_after is None else ""
    if status != 200 or ask.refusals:
        return "" if status in ask.refusals else f"{told}, not {ask.refusals or 200}: {ask.body[:80]!r}"
    return _ending(ask, outcome)


def _ending(ask: Ask, outcome: Outcome) -> str:
    if ask.stream and outcome.markers != 1:
        return f"{outcome.markers} ends of the stream"
    if outcome.errors > 1:
        return f"{outcome.errors} error events"
    expected = Counter(dict.fromkeys(range(ask.choices), 1))
    if outcome.errors and ask.path == MESSAGES:  # there, the error is the end
        expected = Counter[int]()
    return "" if outcome.ends == expected else f"finish reasons by choice: {dict(outcome.ends)}"
