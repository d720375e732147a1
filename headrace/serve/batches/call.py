"""One line through the application: called without a connection, and again until it has an answer."""

import asyncio
import contextlib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from starlette.types import ASGIApp

from headrace.base.errors import EngineDeadError, HeadraceError
from headrace.base.terms import Tenant, caller_terms
from headrace.serve.batches.lines import Line
from headrace.serve.faults import DrainingError, error_body, unexpected

AGAIN = frozenset({408, 429, 503})
AGAIN_S = 1.0
STEP_S = 1.0
"""Between two looks, while a line waits, whether its batch was cancelled."""
MOST_AGAIN_S = 60.0
"""An answer that says when to come again is believed up to this."""
MOST_OUTAGES = 10
"""Deaths of the engine while a line was in it, after which the line fails: it may be what ends the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """What batches ask of the server that they run in."""

    tenant_of: Callable[[str], Tenant | None]
    """An owner's share and limits, as they are now; None: its key is gone."""
    admit: Callable[[], None]
    """Raises DrainingError or EngineDeadError when no request would be taken now."""
    num_restarts: Callable[[], int]
    """How often the engine was started again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answered; `retry_after_s` is 0 when it did not say."""

    status: int
    body: bytes
    retry_after_s: float


class Caller:
    """Answers lines.

    Args:
        app: the application without its gate.
        border: when it takes requests.
    """

    def __init__(self, app: ASGIApp, border: Border) -> None:
        self._app = app
        self._border = border

    async def answer(self, line: Line, is_cancelled: Callable[[], bool]) -> tuple[int, Any] | None:
        """Status and body; None when the batch was cancelled before the line had an answer.

        While the server stops or the engine is away the line waits: that is no answer, and no fault of its.
        """
        outages = 0
        while not is_cancelled():
            try:
                self._border.admit()
            except HeadraceError:
                await _pause(AGAIN_S, is_cancelled)
                continue
            restarts = self._border.num_restarts()
            try:
                reply = await call(self._app, line.url, msgspec.json.encode(line.body))
                body = msgspec.json.decode(reply.body)
            except Exception as error:  # noqa: BLE001 - the border between lines: this one fails, others go on
                return 500, error_body(unexpected(error))
            outages += reply.status == 503 and self._has_died(restarts)
            if (reply.status not in AGAIN or outages > MOST_OUTAGES) and not was_cut(body):
                return reply.status, body
            await _pause(max(AGAIN_S, min(reply.retry_after_s, MOST_AGAIN_S)), is_cancelled)
        return None

    def _has_died(self, restarts: int) -> bool:
        """Whether the engine ended since it had that many restarts; the end of the server is no death."""
        try:
            self._border.admit()
        except DrainingError:
            return False
        except EngineDeadError:
            return True
        return self._border.num_restarts() != restarts


def was_cut(body: Any) -> bool:
    """Whether an answer was aborted by somebody else than the line: by the end of the server."""
    choices: Any = cast("dict[str, Any]", body).get("choices") if isinstance(body, dict) else None
    return any(
        choice.get("finish_reason") == "abort" for choice in cast("list[dict[str, Any]]", choices or [])
    )


async def call(app: ASGIApp, path: str, body: bytes) -> Reply:
    """POST a JSON body to a route of the application, without a connection, for whom the task works for."""
    status, retry_after_s, chunks, is_sent = 500, 0.0, list[bytes](), False
    forever = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        nonlocal is_sent
        if is_sent:
            await forever.wait()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, retry_after_s
        if message["type"] == "http.response.start":
            status = message["status"]
            with contextlib.suppress(ValueError):  # a date is a way to say it that no route here takes
                retry_after_s = float(dict(message["headers"]).get(b"retry-after", b"0"))
        else:
            chunks.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "server": None,
        "client": None,
        "state": {"tenant": caller_terms().tenant.name},
    }
    await app(scope, receive, send)
    return Reply(status, b"".join(chunks), retry_after_s)


async def _pause(seconds: float, is_cancelled: Callable[[], bool]) -> None:
    """Wait that long, or until the batch is cancelled."""
    await asyncio.sleep(0)
    while seconds > 0 and not is_cancelled():
        await asyncio.sleep(min(seconds, STEP_S))
        seconds -= STEP_S
