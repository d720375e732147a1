"""Time in which the server waits for its clients: for the rest of a body, or for room to send more."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.base.clock import now_s


class Level:
    """How many there are of something, and the sum of their seconds.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = now_s) -> None:
        self._clock = clock
        self._count = 0
        self._sum_s = 0.0
        self._since_s = clock()

    def add(self, change: int) -> None:
        """From now on there are so many more."""
        now = self._clock()
        self._sum_s += self._count * (now - self._since_s)
        self._count += change
        self._since_s = now

    @contextmanager
    def one(self) -> Generator[None]:
        """There is one more within this context."""
        self.add(1)
        try:
            yield
        finally:
            self.add(-1)

    @property
    def seconds(self) -> float:
        """The sum up to now, so that a long wait shows while it lasts."""
        self.add(0)
        return self._sum_s


class Waits(Collector):
    """Sums over requests that have a body.

    Attributes:
        requests: from the head of each to the end of its answer.
        bodies: the part of these seconds in which the client had not sent its whole body.
        unread: connections whose client does not read, and whose buffers are full.
    """

    def __init__(self) -> None:
        self.requests = Level()
        self.bodies = Level()
        self.unread = Level()

    def collect(self) -> Iterable[Metric]:
        """The three sums as counters."""
        for name, level, text in (
            ("headrace_http_request_seconds", self.requests, "Seconds of POST requests, open ones included."),
            ("headrace_http_body_wait_seconds", self.bodies, "Of these, seconds of waiting for bodies."),
            ("headrace_http_unread_seconds", self.unread, "Seconds of connections with full buffers."),
        ):
            yield CounterMetricFamily(name, text, value=level.seconds)

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, its requests summed up."""
        return _Timed(app, self)


class _Timed:
    """An application whose requests are summed up."""

    def __init__(self, app: ASGIApp, waits: Waits) -> None:
        self._app = app
        self._waits = waits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        is_whole = False

        async def heard() -> Message:
            nonlocal is_whole
            if is_whole:  # whoever listens now listens for the client's leaving
                return await receive()
            with self._waits.bodies.one():
                message = await receive()
            is_whole = not message.get("more_body", False)
            return message

        with self._waits.requests.one():
            await self._app(scope, heard, send)
