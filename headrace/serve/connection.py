"""HTTP connections with an end: a client must send a request's head in time and read its answer.

Slow bodies are `serve/limits`' affair; here it is about who opens connections and says nothing, or a byte
now and then, until the server has no file descriptor left; and about who asks for an answer and never reads.
"""

import asyncio
import contextlib
import socket
from email.utils import formatdate
from functools import lru_cache
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.base.clock import unix_s
from headrace.base.config import ServeConfig
from headrace.serve.front.waits import Level

MAX_HEADER_BYTES = 1 << 16
KEEP_ALIVE_S = 30
UNSENT_BYTES = 1 << 15
"""What the kernel takes for a client that reads late. It would take megabytes, and nobody would notice that
the client does not read."""
HEAD_S = 30.0
"""From the first moment of a connection, or the end of its last idle time, to the end of a request's head."""


class Connection(H11Protocol):
    """One client's connection, with two timers.

    One runs whenever no request is being answered, one while the client does not read and the buffers on the
    way to it are full.
    """

    write_s = 60.0
    unread = Level()
    """Counts the connections of a server whose client does not read."""
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first head."""
        super().connection_made(transport)
        _bound_unsent(transport.get_extra_info("socket"))
        self._wait(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """Read; a whole head ends the wait."""
        self._tell_time()
        super().data_received(data)
        if self._is_answering:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head, or for the rest of a body nobody reads any more."""
        self._tell_time()  # the next request may be here already
        super().on_response_complete()
        if not self._is_answering:
            self._wait(KEEP_ALIVE_S + HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_waiting()
        self._stop_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read: begin to wait for it."""
        super().pause_writing()
        self._stop_unread()
        self._unread = self.loop.call_later(self.write_s, self.transport.abort)
        self.unread.add(1)

    def resume_writing(self) -> None:
        """It has read what was kept for it."""
        self._stop_unread()
        super().resume_writing()

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _tell_time(self) -> None:
        """The library's server would wake ten times a second to do this."""
        self.server_state.default_headers = dated(int(unix_s()))

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._cut)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
            self.unread.add(-1)

    def _cut(self) -> None:
        if self._is_answering:
            return
        if self.transport.get_write_buffer_size():  # closing would wait until somebody reads it
            self.transport.abort()
        else:
            self.transport.close()


@lru_cache(maxsize=1)
def dated(second: int) -> list[tuple[bytes, bytes]]:
    """The headers of every answer that is asked for in this second of Unix time; nobody changes them."""
    return [(b"date", formatdate(second, usegmt=True).encode())]


def _bound_unsent(sock: socket.socket | None) -> None:
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is None or sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    with contextlib.suppress(OSError):  # a system without it keeps more, and that is all
        sock.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)


def connection_type(write_timeout_s: float, unread: Level | None = None) -> type[Connection]:
    """Connections whose clients have that long to read; those that do not are counted in `unread`."""
    return type("Connection", (Connection,), {"write_s": write_timeout_s, "unread": unread or Level()})


def http_config(app: ASGIApp, config: ServeConfig, unread: Level | None = None) -> uvicorn.Config:
    """How HTTP is spoken; `unread` counts connections whose client does not read."""
    log_level = config.log_level
    return uvicorn.Config(
        app,
        log_level=log_level,
        access_log=log_level == "debug",
        http=connection_type(config.write_timeout_s, unread),
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
