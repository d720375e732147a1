"""Server-sent events and disconnects: an answer is produced only as long as somebody listens.

`while_connected` guards work that has no open stream yet; `EventStream` guards the stream. Both cancel the
work when the client goes away, and cancelling closes the engine's iterators, which aborts the requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.base.errors import HeadraceError

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGoneError(HeadraceError):
    """The client closed the connection; nobody reads the answer."""

    http_status = 499
    code = "client_gone"


def event(body: object) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(name: str, body: object) -> bytes:
    """One server-sent event with a name and a JSON body."""
    return b"event: " + name.encode() + b"\n" + event(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it when the client goes away.

    Raises:
        ClientGoneError: the client went away.
    """
    return await _first(asyncio.ensure_future(work), request.receive)


class EventStream(Response):
    """Streams events; they and their source are closed at the end, on errors and on disconnects alike.

    Args:
        events: what to send.
        source: what the events are made of. It is closed too, because closing an iterator that was never
        started
            would not reach it.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], source: AsyncIterator[Any]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client goes away."""
        with contextlib.suppress(ClientGoneError, OSError):
            await _first(asyncio.ensure_future(self._send_all(send)), receive)

    async def _send_all(self, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await close(self._events)
            await close(self._source)


async def close(events: AsyncIterator[Any]) -> None:
    """Close an asynchronous generator, if it is one."""
    closing: Awaitable[None] | None = getattr(events, "aclose", lambda: None)()
    if closing is not None:
        await closing


async def _first(work: "asyncio.Future[T]", receive: Receive) -> T:
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientGoneError("the client went away")
    finally:
        for task in (watch, work):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, HeadraceError):
                    await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
