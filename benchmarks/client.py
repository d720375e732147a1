"""One request of the benchmarks: the product's own load client, and what is read off its outcome."""

import asyncio
import itertools
from dataclasses import dataclass, field

from headrace.tools.bench.ask import ask as measured
from headrace.tools.bench.wire import Client, Target

TIMEOUT_S = 3600.0


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
        pairs = itertools.pairwise(self.stamps)
        return [b - a for a, b in pairs if window is None or window[0] <= b <= window[1]]

    @property
    def ttft(self) -> float:
        return self.stamps[0] - self.start

    @property
    def tpot(self) -> float:
        return (self.stamps[-1] - self.stamps[0]) / max(1, self.output_tokens - 1)


async def ask(host: str, port: int, body: dict, path: str = "/v1/chat/completions") -> Answer:
    """POST a streaming request and read its events to the end."""
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    now = asyncio.get_running_loop().time()
    outcome = await measured(Client(Target(host, port)), path, whole, TIMEOUT_S, now)
    return Answer(
        start=outcome.sent_s,
        stamps=outcome.stamps_s,
        end=outcome.end_s,
        prompt_tokens=outcome.counts.prompt,
        output_tokens=outcome.counts.output,
        cached_tokens=outcome.counts.cached,
        text=outcome.text,
        error=None if outcome.failure is None else f"{outcome.failure}: {outcome.detail}",
    )


async def post(
    host: str, port: int, path: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a JSON body over a connection of its own; the answer is to be read, the writer to be closed."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    return reader, writer
