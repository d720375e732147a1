"""A small streaming client: one connection per request; it costs little beside the server on two cores."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Answer:
    """One request's times (seconds) and counts; tokens come from the server's usage, never from events."""

    start: float
    stamps: list[float] = field(default_factory=list)
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    error: str | None = None
    tag: str = ""

    def gaps(self, window: tuple[float, float] | None = None) -> list[float]:
        """Seconds between events; with a window only those that end in it."""
        pairs = zip(self.stamps, self.stamps[1:], strict=False)
        return [b - a for a, b in pairs if window is None or window[0] <= b <= window[1]]

    @property
    def ttft(self) -> float:
        return self.stamps[0] - self.start

    @property
    def tpot(self) -> float:
        return (self.stamps[-1] - self.stamps[0]) / max(1, self.output_tokens - 1)


async def ask(host: str, port: int, body: dict, path: str = "/v1/chat/completions") -> Answer:
    """POST a streaming request and read its events to the end."""
    answer = Answer(time.perf_counter())
    try:
        async for data in _events(
            host, port, path, {**body, "stream": True, "stream_options": {"include_usage": True}}
        ):
            now = time.perf_counter()
            event = json.loads(data)
            if "error" in event:
                answer.error = json.dumps(event["error"])[:300]
                break
            _take(answer, event, now)
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.end = time.perf_counter()
    if answer.error is None and not answer.stamps:
        answer.error = "no text came back"
    return answer


async def post(
    host: str, port: int, path: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a JSON body over a connection of its own; the answer is to be read, the writer to be closed."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    return reader, writer


def _take(answer: Answer, event: dict, now: float) -> None:
    for choice in event.get("choices") or ():
        piece = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        if piece:
            answer.stamps.append(now)
            answer.text += piece
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens") or answer.prompt_tokens
        answer.output_tokens = usage.get("completion_tokens") or answer.output_tokens
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def _events(host: str, port: int, path: str, body: dict) -> AsyncIterator[bytes]:
    reader, writer = await post(host, port, path, json.dumps(body).encode())
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            rest = await reader.read(600)
            raise ValueError(f"{status.decode().strip()} {rest[-300:].decode(errors='replace')}")
        while (
            line := await reader.readline()
        ):  # chunk sizes lie between the events and do not start with "data:"
            line = line.strip()
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data:"):
                yield line[5:].strip()
    finally:
        writer.close()
