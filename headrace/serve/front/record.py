"""What is known of an HTTP request when it is over, for whoever reports it: log, traces, metrics."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.base.clock import now_s, unix_s
from headrace.engine.outputs import RequestOutput, Usage

MAX_BODY_BYTES = 1 << 16
"""Of a body that is kept for the log."""


@dataclass(slots=True)
class Answered:
    """What the engine did for it, over all its prompts."""

    request_id: str = ""
    usage_by_prompt: dict[int, Usage] = field(default_factory=dict[int, Usage])
    finish_reasons: list[str] = field(default_factory=list[str])
    ttft_s: float | None = None
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the prompt that ended last; see `RequestOutput.timings`."""
    ended: list[str] = field(default_factory=list[str])
    """Requests of the engine that ended."""

    def see(self, prompt: int, output: RequestOutput) -> None:
        """Note an output of a prompt."""
        self.request_id = output.request_id
        self.usage_by_prompt[prompt] = output.usage
        if output.timings is not None:
            self.timings = output.timings
        if output.finished:
            self.ended.append(output.request_id)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens."""
        return sum(u.prompt_tokens for u in self.usage_by_prompt.values())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return sum(u.cached_tokens for u in self.usage_by_prompt.values())

    @property
    def completion_tokens(self) -> int:
        """Tokens drawn, as far as they were told."""
        return sum(u.completion_tokens for u in self.usage_by_prompt.values())


@dataclass(slots=True, kw_only=True)
class Record:
    """One HTTP request. The path has no query, and nothing here holds a prompt or a key but `body`."""

    method: str
    path: str
    client: str
    traceparent: str
    start_unix_s: float
    seconds: float = 0.0
    status: int = 0
    """0: the client went away before there was one."""
    num_bytes: int = 0
    key: str = ""
    """Name of the API key."""
    is_whole: bool = False
    """Whether the answer was sent to its end."""
    answered: Answered = field(default_factory=Answered)
    body: bytearray | None = None


Report = Callable[[Record], None]

_CURRENT: ContextVar[Record | None] = ContextVar("headrace_record", default=None)


def current_answered() -> Answered:
    """Where the request that this task works for notes what the engine did."""
    record = _CURRENT.get()
    return Answered() if record is None else record.answered


class Recorder:
    """ASGI wrapper that makes a record of each request and reports it when it is over.

    Args:
        app: what is wrapped.
        reports: called with each record.
        with_body: keep the beginning of bodies.
    """

    def __init__(self, app: ASGIApp, reports: Sequence[Report], *, with_body: bool) -> None:
        self._app = app
        self._reports = reports
        self._with_body = with_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, listening."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _record_of(scope)
        if self._with_body:
            record.body = bytearray()
        start_s = now_s()
        _CURRENT.set(record)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            else:
                record.num_bytes += len(message.get("body", b""))
            await send(message)
            record.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        async def heard() -> Message:
            message = await receive()
            if record.body is not None and len(record.body) < MAX_BODY_BYTES:
                record.body += message.get("body", b"")[: MAX_BODY_BYTES - len(record.body)]
            return message

        try:
            await self._app(scope, heard if self._with_body else receive, told)
        finally:
            record.seconds = now_s() - start_s
            record.key = scope.get("state", {}).get("tenant", "")
            for report in self._reports:
                report(record)


def _record_of(scope: Scope) -> Record:
    client = scope.get("client")
    parents = [value for name, value in scope["headers"] if name == b"traceparent"]
    return Record(
        method=scope["method"],
        path=scope["path"],
        client=client[0] if client else "",
        traceparent=parents[0].decode("latin-1") if parents else "",
        start_unix_s=unix_s(),
    )
