"""HTTP connections with an end: a client must send the head of a request in time, or is cut off.

Slow bodies are `serve/limits`' affair; here it is about who opens connections and says nothing, or a byte
now and then, until the server has no file descriptor left.
"""

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_BYTES = 1 << 16
KEEP_ALIVE_S = 30
HEAD_S = 30.0
"""From the first moment of a connection, or the end of its last idle time, to the end of a request's head."""


class Connection(H11Protocol):
    """One client's connection, with one timer: it runs whenever no request is being answered."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._wait(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """Read; a whole head ends the wait."""
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head, or for the rest of a body nobody reads any more."""
        super().on_response_complete()
        if not self._is_answering:
            self._wait(KEEP_ALIVE_S + HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._cut)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        if not self._is_answering:
            self.transport.close()


def http_config(app: ASGIApp, log_level: str) -> uvicorn.Config:
    """How HTTP is spoken."""
    return uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level == "debug",
        http=Connection,
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
