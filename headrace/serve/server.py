"""Starting and stopping: the engine, the HTTP loop, and what happens on TERM.

On TERM or INT the server stops admitting (`/ready` and new requests get 503), running requests get
`drain_s` seconds, the rest is cut, and the engine ends; a body that is not whole by then is answered with
503. A second signal cuts at once.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.base.config import BatchConfig, EngineConfig
from headrace.base.errors import ConfigError
from headrace.base.memory import settle
from headrace.engine.async_llm import AsyncLLM, Launch
from headrace.serve.address import listen, url_of
from headrace.serve.app import ROUTE_FILES, build_app
from headrace.serve.connection import http_config
from headrace.serve.faults import DrainingError, fault_response
from headrace.serve.front.keys import load_keys
from headrace.serve.limits import BODIES, Bodies
from headrace.serve.state import Served

log = logging.getLogger("headrace.serve")

CUT_S = 1.0
"""So long a request may take to say that it was cut."""
Announce = Callable[[AsyncLLM, str], None]
"""Told the started engine and the URL, once requests are accepted."""


async def serve(
    config: EngineConfig, announce: Announce, sock: socket.socket, launch: Launch | None = None
) -> None:
    """Run the server until a signal ends it.

    Args:
        config: the settings.
        announce: told when requests are accepted.
        sock: from `address.bind`; closed here.
        launch: of an engine process that loads the model already; None: one is started when it is needed.

    Raises:
        ConfigError: the settings are impossible.
        AddressTakenError: another program took the address meanwhile.
    """
    with contextlib.closing(sock):
        try:
            check_batches(config.batch)
            load_keys(config.access)  # what is wrong with them need not wait for the model
            ROUTE_FILES.all()  # imports the endpoints while the engine process loads
        except BaseException:
            if launch is not None:
                launch.client.close()
            raise
        llm = await AsyncLLM.start(config, launch)
        try:
            app, state = build_app(llm, config)
            settle()
            try:
                await _Loop(app, state, lambda: announce(llm, url_of(sock))).run(sock)
            finally:
                for end in state.at_end:
                    await asyncio.to_thread(end)
        finally:
            await llm.close(0.0)


def check_batches(config: BatchConfig) -> None:
    """Refuse bounds under which no batch could run.

    Raises:
        ConfigError: a setting is out of range.
    """
    for name in ("max_files", "max_bytes", "max_file_bytes", "max_lines", "max_lines_running"):
        if getattr(config, name) < 1:
            raise ConfigError(
                f"batch.{name} must be at least 1, got {getattr(config, name)}", param=f"batch.{name}"
            )
    if not 0 < config.key_share <= 1:
        raise ConfigError(
            f"batch.key_share must be in (0, 1], got {config.key_share:g}", param="batch.key_share"
        )
    if not config.result_days > 0:
        raise ConfigError(
            f"batch.result_days must be positive, got {config.result_days:g}", param="batch.result_days"
        )


class InFlight:
    """ASGI wrapper that knows the requests that are being answered, and ends them when the server ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()
        self.bodies = Bodies()
        self.idle = asyncio.Event()
        self.idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; a request that is cut before its answer began is told so."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[BODIES] = self.bodies
        task = cast("asyncio.Task[None]", asyncio.current_task())
        has_begun = False

        async def told(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self._tasks.add(task)
        self.idle.clear()
        try:
            await self._app(scope, receive, told)
        except asyncio.CancelledError:
            if not self.bodies.are_over:
                raise
            log.warning("%s %r was cut: the server stops", scope["method"], scope["path"])
            if not has_begun:
                fault = DrainingError("the server stopped before the request was answered")
                await fault_response(fault, scope["path"])(scope, receive, send)
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self.idle.set()

    async def cut(self, seconds: float) -> None:
        """Wait that long for requests to end, cancel what is left, and wait again."""
        for is_last in (False, True):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.idle.wait()
            for task in () if is_last else tuple(self._tasks):
                task.cancel()


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling and its clock, and with word of when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._is_over = asyncio.Event()

    def end(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self._is_over.set()

    async def main_loop(self) -> None:
        """Until `end`. Connections keep the time (`connection.dated`), so nothing has to wake up."""
        await self._is_over.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to whoever runs this."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_started()


class _Loop:
    """The HTTP loop of one server and its end."""

    def __init__(self, app: ASGIApp, state: Served, on_started: Callable[[], None]) -> None:
        self._state = state
        self._app = InFlight(app)
        self._hurry = asyncio.Event()
        self._server = HttpServer(
            http_config(self._app, state.config, state.metrics.waits.unread), on_started
        )
        self._ending: asyncio.Task[None] | None = None

    async def run(self, sock: socket.socket) -> None:
        listen(sock)  # before anything of a batch is done: another server may have taken the address
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        batches = self._state.batches
        if batches is not None:
            batches.wake()  # what an earlier server left open goes on
        try:
            await self._server.serve(sockets=[sock])
        finally:
            if batches is not None:
                await batches.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._ending is not None:
                await self._ending

    def _on_signal(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        else:
            self._hurry.set()

    async def _end(self) -> None:
        self._state.draining = True
        waits = {asyncio.ensure_future(self._app.idle.wait()), asyncio.ensure_future(self._hurry.wait())}
        _, left = await asyncio.wait(
            waits, timeout=self._state.config.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in left:
            wait.cancel()
        self._app.bodies.end()
        if self._state.batches is not None:  # first: a line that closing the engine cuts must come again
            await self._state.batches.close()
        await self._state.llm.close(0.0)
        await self._app.cut(CUT_S)
        self._server.end()
