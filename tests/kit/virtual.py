"""Virtual time, and a scripted server in it: what a client measures can be computed by hand, to the bit."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.tools.bench.wire import Client, Target

TARGET = Target("scripted", 80)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands while there is work, and jumps to the next timer when there is none."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            waiting = [h.when() for h in self._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
            if waiting:
                self.now = max(self.now, min(waiting))
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@dataclass(frozen=True)
class Script:
    """Bytes with the moments (seconds after the request) at which they come; then the connection ends."""

    parts: Sequence[tuple[float, bytes]]
    end_s: float


@dataclass
class Scripted:
    """Answers each request by a script; keeps the bodies and when they came."""

    script: Callable[[dict[str, Any], int], Script]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)

    def client(self) -> Client:
        return Client(TARGET, self.connect)

    async def connect(self, target: Target) -> tuple[asyncio.StreamReader, Any]:
        del target
        reader = asyncio.StreamReader()
        return reader, _Wire(self, reader)


@dataclass
class _Wire:
    server: Scripted
    reader: asyncio.StreamReader
    is_closed: bool = False

    def write(self, data: bytes) -> None:
        loop, server = asyncio.get_running_loop(), self.server
        head, _, body = data.partition(b"\r\n\r\n")
        server.heads.append(head.decode())
        server.came_s.append(loop.time())
        server.bodies.append(json.loads(body) if body else {})
        script = server.script(server.bodies[-1], len(server.bodies) - 1)
        by_moment: dict[float, bytes] = {script.end_s: b""}  # timers of one moment have no order
        for at, part in script.parts:
            by_moment[at] = by_moment.get(at, b"") + part
        for at, part in by_moment.items():
            loop.call_at(loop.time() + at, self._feed, part, at == script.end_s)

    def _feed(self, part: bytes, is_last: bool) -> None:
        if self.is_closed:
            return
        self.reader.feed_data(part)
        if is_last:
            self.reader.feed_eof()

    def close(self) -> None:
        self.is_closed = True


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")


def delta(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text} | more, "finish_reason": finish}]}


def usage(prompt: int, output: int, cached: int = 0) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
    return {"choices": [], "usage": counts}


def stream(moments: Sequence[float], counts: dict[str, Any] | None, end_s: float) -> Script:
    """A role, a word at each moment, a finish reason with the last, usage, and [DONE] at the end."""
    parts = [(0.0, OK), (0.0, event(delta("")))]
    for number, moment in enumerate(moments, 1):
        parts.append((moment, event(delta(f"w{number} ", "length" if number == len(moments) else None))))
    tail = [event(counts)] if counts else []
    parts.append((end_s, b"".join([*tail, event(b"[DONE]"), chunk(b"")])))
    return Script(parts, end_s)


def status(code: int, text: str = "no") -> Script:
    head = f"HTTP/1.1 {code} Some\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    return Script([(0.25, head.encode())], 0.25)
