"""One answer as a list of blocks, and how it becomes a response, whole or streamed."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import HeadraceError
from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import ChoiceDelta, RequestOutput, Usage
from headrace.host.text.parts.events import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning
from headrace.serve.answering import timings_of
from headrace.serve.collect import Numbered, first_output, merge
from headrace.serve.faults import EngineFaultError, json_response, unexpected
from headrace.serve.metrics import RequestClock
from headrace.serve.schema.support import renamed
from headrace.serve.state import Served
from headrace.serve.stream import EventStream, close, while_connected

UNFINISHED = "the engine ended the request without finishing it"


@dataclass(slots=True, kw_only=True)
class Block:
    """A piece of an answer of one kind: `text`, `reasoning` or `call`."""

    kind: str
    index: int
    call_id: str = ""
    name: str = ""
    """The function of a call."""
    texts: list[str] = field(default_factory=list[str])
    """Pieces of the text; of a call, of its arguments in JSON."""
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    is_cut: bool = False
    """The answer ended within it, by something else than the model."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Opened:
    """A block began."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """A block got more text."""

    block: Block
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """A block is complete, or was cut where the answer ends (`is_cut`)."""

    block: Block


Change = Opened | Grown | Closed


class Reply:
    """An answer so far; `feed` it every output of its request."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.usage = Usage()
        self.reasoning_tokens = 0
        self.seed = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.timings: dict[str, Any] | None = None
        """Where its time went, once it is over; None: not asked for, or not known."""
        self._open: Block | None = None
        self._held_tokens = 0
        """Tokens whose text is held back: they belong to the block that comes."""
        self._held_logprobs: tuple[TokenLogprobs, ...] = ()

    def feed(self, output: RequestOutput) -> list[Change]:
        """What an output adds. The error it may carry is the caller's affair."""
        self.usage, self.seed = output.usage, output.seed
        changes: list[Change] = []
        for delta in output.choices:
            if self.finish_reason is None:
                changes += self._take(delta)
        return changes

    def _take(self, delta: ChoiceDelta) -> list[Change]:
        changes: list[Change] = []
        if delta.parts is not None:
            changes += self._take_parts(delta.parts, delta)
        elif delta.text or delta.logprobs:
            changes += self._grow("text", delta.text, delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            if not self.blocks:  # clients look at the first block of every answer
                changes += self._grow("text", "", ())
            changes += self._close()
        return changes

    def _take_parts(self, parts: tuple[Part, ...], delta: ChoiceDelta) -> list[Change]:
        self._held_tokens += len(delta.token_ids)
        self._held_logprobs += delta.logprobs
        changes: list[Change] = []
        for part in parts:
            match part:
                case Content(text):
                    logprobs, self._held_logprobs = self._held_logprobs, ()
                    changes += self._grow("text", text, logprobs)
                case Reasoning(text):
                    changes += self._grow("reasoning", text, ())
                case CallBegin(_, call_id, name):
                    changes += self._close()
                    changes += self._begin("call", call_id, name)
                case CallArguments(_, text):
                    changes += self._grow("call", text, ())
                case CallEnd():
                    changes += self._close()
        if parts or self._open is not None:
            kind = self.blocks[-1].kind
            self.reasoning_tokens += self._held_tokens if kind == "reasoning" else 0
            self._held_tokens = 0
            self._held_logprobs = self._held_logprobs if kind == "text" else ()
        return changes

    def _grow(self, kind: str, text: str, logprobs: tuple[TokenLogprobs, ...]) -> list[Change]:
        changes: list[Change] = []
        if self._open is None or self._open.kind != kind:
            changes += self._close()
            changes += self._begin(kind)
        block = self.blocks[-1]
        if text or logprobs:
            block.texts.append(text)
            block.logprobs.extend(logprobs)
            changes.append(Grown(block, text, logprobs))
        return changes

    def _begin(self, kind: str, call_id: str = "", name: str = "") -> list[Change]:
        self._open = Block(kind=kind, index=len(self.blocks), call_id=call_id, name=name)
        self.blocks.append(self._open)
        return [Opened(self._open)]

    def _close(self) -> list[Change]:
        if self._open is None:
            return []
        closed, self._open = self._open, None
        closed.is_cut = self.finish_reason in {"length", "abort", "error"}
        return [Closed(closed)]


class Spelling(Protocol):
    """How an API spells one answer; an object serves one answer and may count its events."""

    def begin(self, reply: Reply) -> list[bytes]:
        """Events before everything else; `reply` has the prompt's usage."""
        ...

    def change(self, change: Change) -> list[bytes]:
        """Events of a change."""
        ...

    def end(self, reply: Reply) -> list[bytes]:
        """Events after the last change."""
        ...

    def failed(self, reply: Reply, error: HeadraceError) -> list[bytes]:
        """Events that end a stream that failed."""
        ...

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The body of a whole answer.

        Raises:
            HeadraceError: this API has no answer for such an end.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaking:
    """One request on its way to an answer."""

    served: Served
    spelling: Spelling
    stream: bool
    headers: Mapping[str, str]
    names: Mapping[str, str]
    """What fields of the chat endpoint are called in this API, for errors."""
    timings: bool = False
    """Whether the answer tells where its time went."""

    async def respond(self, request: Request, source: AsyncIterator[RequestOutput]) -> Response:
        """The answer to one HTTP request.

        Raises:
            HeadraceError: the request was refused, failed before its first output, or failed and is no
            stream.
        """
        clock = RequestClock(self.served.metrics)
        outputs = merge([source])
        with renamed(self.names):
            if not self.stream:
                return await while_connected(request, self._whole(outputs, clock))
            first = await while_connected(request, first_output(outputs))
        response = EventStream(self._events(first, outputs, clock), outputs)
        response.headers.update(self.headers)
        return response

    async def _whole(self, outputs: AsyncIterator[Numbered], clock: RequestClock) -> Response:
        reply = Reply()
        try:
            async for _, output in outputs:
                clock.see(0, output)
                self._feed(reply, output)
                if output.error is not None:
                    raise output.error
        finally:
            await close(outputs)
        if reply.finish_reason is None:
            raise EngineFaultError(UNFINISHED)
        body = self.spelling.whole(reply)
        clock.done()
        return json_response(body, headers=dict(self.headers))

    async def _events(
        self, first: Numbered | None, outputs: AsyncIterator[Numbered], clock: RequestClock
    ) -> AsyncIterator[bytes]:
        reply = Reply()
        try:
            if first is not None:
                for data in self._first(reply, first[1], clock):
                    yield data
                async for _, output in outputs:
                    for data in self._next(reply, output, clock):
                        yield data
            if reply.finish_reason is None:
                raise EngineFaultError(UNFINISHED)
        except Exception as err:  # noqa: BLE001 - the status line is out: every error becomes an event
            if reply.finish_reason is None:
                self.served.metrics.finished.labels("error").inc()
            for data in self.spelling.failed(reply, unexpected(err)):
                yield data
            return
        clock.done()
        for data in self.spelling.end(reply):
            yield data

    def _first(self, reply: Reply, output: RequestOutput, clock: RequestClock) -> list[bytes]:
        reply.usage = output.usage
        return self.spelling.begin(reply) + self._next(reply, output, clock)

    def _next(self, reply: Reply, output: RequestOutput, clock: RequestClock) -> list[bytes]:
        clock.see(0, output)
        events = [data for change in self._feed(reply, output) for data in self.spelling.change(change)]
        if output.error is not None:
            raise output.error
        return events

    def _feed(self, reply: Reply, output: RequestOutput) -> list[Change]:
        if self.timings and output.finished and output.timings:
            reply.timings = timings_of(self.served, output)
        return reply.feed(output)
