"""Bodies within bounds: size before reading, time while reading, depth and count before validation."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
from starlette.requests import ClientDisconnect, Request

from headrace.base.errors import RequestError
from headrace.serve.faults import BodyTooLargeError, DrainingError, SlowBodyError

MAX_DEPTH = 48
"""Nesting of a JSON body; tool schemas need about a dozen."""
MAX_ELEMENTS = 1_000_000
"""Commas in a body, an upper bound of its values; no context is that long."""
MAX_NAMES = 1 << 18
"""Names of fields in a body, of all objects together; text that looks like one counts too."""
BODY_TIMEOUT_S = 60.0
THREAD_BYTES = 1 << 16
"""Larger bodies are parsed in a thread, so that the event loop keeps answering."""
DISCARD_S = 2.0
DISCARD_BYTES = 1 << 24
_READ = "headrace.body_read"
BODIES = "headrace.bodies"
"""Where an ASGI scope has the server's `Bodies`."""


class Bodies:
    """The bodies that a server is reading; it waits for them no longer than it lives."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()
        self.are_over = False

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """Read within that time, and before the end.

        Raises:
            TimeoutError: the time was over.
        """
        async with asyncio.timeout(0 if self.are_over else seconds) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    def end(self) -> None:
        """Wait no longer, for none that is on its way and none that comes."""
        self.are_over = True
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now_s)


def _bodies(request: Request) -> Bodies:
    return request.scope.get(BODIES) or Bodies()


async def discard_body(request: Request) -> None:
    """Take in what is left of a refused body, within bounds, where the connection closes after the answer.

    Closed with bytes unread it would be reset, and the client could lose the answer.
    """
    headers = request.headers
    is_closing = headers.get("connection", "").lower() == "close"
    is_there = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not (is_closing and is_there) or request.scope.get(_READ) or "expect" in headers:
        return
    size = 0
    with contextlib.suppress(TimeoutError):
        async with _bodies(request).within(DISCARD_S):
            while size < DISCARD_BYTES:
                message = await request.receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object of a request's body.

    Raises:
        BodyTooLargeError: more than `max_bytes`; refused before the body is read when its length is
        announced. SlowBodyError: it did not arrive within `BODY_TIMEOUT_S`. DrainingError: nor before the
        server stops. RequestError: not a JSON object, or nested too deeply, or too many values.
    """
    body = await read_body(request, max_bytes)
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(parse_object, body)
    return parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Decode strict JSON (UTF-8, no NaN) that is an object within the limits.

    Raises:
        RequestError: it is not.
    """
    if body.count(b",") > MAX_ELEMENTS:
        raise RequestError(f"the body has more than {MAX_ELEMENTS} values; send less")
    if body.count(b'":') > MAX_NAMES:
        raise RequestError(f"the body has more than {MAX_NAMES} named fields; send less")
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise RequestError(f"the body is not valid JSON: {err}") from err
    except RecursionError as err:
        raise RequestError(f"the body is nested deeper than {MAX_DEPTH} levels") from err
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    found = cast("dict[str, Any]", value)
    _check_depth(found)
    return found


def _check_depth(value: object) -> None:
    """Walk down level by level; `value` is made of dictionaries, lists and scalars."""
    level: list[object] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(f"the body is nested deeper than {MAX_DEPTH} levels")
        below: list[object] = []
        for item in level:
            children: list[object] = (
                list(cast("dict[str, object]", item).values())
                if isinstance(item, dict)
                else cast("list[object]", item)
            )
            below.extend(cast("object", c) for c in children if isinstance(c, (dict, list)))
        level = below


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The bytes of a request's body.

    Raises:
        BodyTooLargeError: more than `max_bytes`. SlowBodyError: it did not arrive within `BODY_TIMEOUT_S`.
        DrainingError: nor before the server stops.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size, bodies = 0, _bodies(request)
    try:
        async with bodies.within(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
    except TimeoutError as err:
        if bodies.are_over:
            raise DrainingError("the server stops and waits no longer for the rest of the body") from err
        raise SlowBodyError(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from err
    except ClientDisconnect as err:
        raise RequestError("the client went away") from err
    request.scope[_READ] = True
    return b"".join(chunks)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the body is larger than {max_bytes} bytes; send less, or start the server with a larger "
        f"--max-body-bytes"
    )
