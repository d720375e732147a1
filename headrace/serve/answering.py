"""What both completion endpoints do with the engine's outputs: answer whole, or as a stream.

The endpoints differ in the shape of a choice; a `Shape` makes it. Exactly one chunk of each choice carries
a finish reason, also when the request fails in the middle: then the choices that are open end with `error`,
an error event follows, and the stream ends with its marker.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import HeadraceError
from headrace.base.terms import caller_terms
from headrace.engine.outputs import ChoiceDelta, RequestOutput, Usage
from headrace.host.text.parts.events import Content
from headrace.serve.collect import Numbered, WholeChoice, WholeRequest, first_output, merge, total
from headrace.serve.faults import EngineFaultError, error_body, json_response, unexpected
from headrace.serve.metrics import RequestClock
from headrace.serve.schema.answers import Envelope
from headrace.serve.schema.sampling import SamplingBody
from headrace.serve.schema.timings import timings_body
from headrace.serve.state import Served
from headrace.serve.stream import DONE, EventStream, close, event, while_connected


class Shape(Protocol):
    """How an endpoint spells choices: `prompt` is the prompt's number, `index` the choice's in the answer."""

    def opening(self, index: int, prompt: int, output: RequestOutput) -> list[dict[str, Any]]:
        """Streamed choices that come before a choice's first delta."""
        ...

    def delta(self, index: int, prompt: int, delta: ChoiceDelta) -> dict[str, Any]:
        """A streamed choice."""
        ...

    def failed(self, index: int) -> dict[str, Any]:
        """A streamed choice that ends with finish reason `error`."""
        ...

    def whole(self, index: int, prompt: int, request: WholeRequest, choice: WholeChoice) -> dict[str, Any]:
        """A choice of a whole answer."""
        ...

    def extras(self, requests: Sequence[WholeRequest]) -> dict[str, Any]:
        """More top-level fields of a whole answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """One request of an endpoint on its way to an answer."""

    served: Served
    body: SamplingBody
    shape: Shape
    envelope: Envelope
    num_choices: int
    """Choices per prompt."""

    async def respond(self, request: Request, sources: Sequence[AsyncIterator[RequestOutput]]) -> Response:
        """The answer to one HTTP request, made of one engine request per prompt.

        Raises:
            HeadraceError: the request was refused, failed before its first output, or failed and is no
            stream.
        """
        clock = RequestClock(self.served.metrics)
        outputs = merge(sources)
        if not self.body.stream:
            return await while_connected(request, self._whole(outputs, len(sources), clock))
        first = await while_connected(request, first_output(outputs))
        return EventStream(self._events(first, outputs, len(sources), clock), outputs)

    async def _whole(
        self, outputs: AsyncIterator[Numbered], num_prompts: int, clock: RequestClock
    ) -> Response:
        requests = [WholeRequest(self.num_choices) for _ in range(num_prompts)]
        try:
            async for prompt, output in outputs:
                clock.see(prompt, output)
                requests[prompt].add(output)
        finally:
            await close(outputs)
        kept = self.body.num_kept or self.num_choices
        for request in requests:
            request.keep_best(kept)
        made = [
            self.shape.whole(prompt * kept + n, prompt, request, choice)
            for prompt, request in enumerate(requests)
            for n, choice in enumerate(request.choices)
        ]
        if any(c.finish_reason is None for r in requests for c in r.choices):
            raise EngineFaultError("the engine ended the request without finishing every choice")
        clock.done()
        body = self.envelope.whole(made, total([r.usage for r in requests]), requests[0].seed)
        if self.body.timings:
            ended = [request.last for request in requests if request.last is not None]
            body["timings"] = self.timings_of(max(ended, key=_e2e_s))
        return json_response(body | self.shape.extras(requests))

    def timings_of(self, output: RequestOutput) -> dict[str, Any]:
        """`timings` of a prompt, from its last output."""
        return timings_of(self.served, output, self.num_choices)

    async def _events(
        self,
        first: Numbered | None,
        outputs: AsyncIterator[Numbered],
        num_prompts: int,
        clock: RequestClock,
    ) -> AsyncIterator[bytes]:
        told = Told(self, num_prompts, clock)
        try:
            if first is not None:
                for data in told.news(*first):
                    yield data
                async for prompt, output in outputs:
                    for data in told.news(prompt, output):
                        yield data
            if told.open:
                raise EngineFaultError("the engine ended the request without finishing every choice")
        except Exception as err:  # noqa: BLE001 - the status line is out: every error becomes an event
            for data in told.failure(unexpected(err)):
                yield data
            return
        clock.done()
        if self.body.wants_usage_chunk:
            yield event(self.envelope.chunk([], total(told.usages)))
        yield DONE


def timings_of(served: Served, output: RequestOutput, num_choices: int = 1) -> dict[str, Any]:
    """`timings` of a prompt of the caller's, from its last output; its choices were drawn side by side."""
    timeline = served.llm.timelines.find(caller_terms().tenant.name, output.request_id)
    return timings_body(output.timings or {}, output.usage, num_choices, timeline, output.drafts)


def _e2e_s(output: RequestOutput) -> float:
    return (output.timings or {}).get("e2e_s", 0.0)


def plain_text(delta: ChoiceDelta) -> str:
    """The content of a delta that is content and nothing else that clients see; empty: it is not."""
    if delta.logprobs or delta.finish_reason is not None:
        return ""
    if delta.parts is None:
        return delta.text
    only = delta.parts[0] if len(delta.parts) == 1 else None
    return only.text if isinstance(only, Content) else ""


def is_silent(delta: ChoiceDelta) -> bool:
    """Whether a delta has nothing but tokens: their text is held, or is left out."""
    return delta.parts == () and not delta.logprobs and delta.finish_reason is None


class Spelled:
    """Events of plain deltas: all but the text is spelled once per choice, by the shape itself.

    Most events of a stream are of this kind, and differ in nothing but the text.
    """

    MARK = "\u2063headrace-text\u2063"

    def __init__(self, answering: Answering) -> None:
        self._a = answering
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def event(self, index: int, prompt: int, text: str) -> bytes:
        """The event of a delta that is plain (`plain_text`)."""
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._spell(index, prompt)
        return around[0] + msgspec.json.encode(text) + around[1]

    def _spell(self, index: int, prompt: int) -> tuple[bytes, bytes]:
        delta = ChoiceDelta(index=index, text=self.MARK)
        whole = event(self._a.envelope.chunk([self._a.shape.delta(index, prompt, delta)]))
        # The last one: what clients choose (an id) comes before the choices.
        before, _, after = whole.rpartition(msgspec.json.encode(self.MARK))
        return before, after


class Told:
    """What a stream has told its client so far."""

    def __init__(self, answering: Answering, num_prompts: int, clock: RequestClock) -> None:
        self._pending: list[bytes] = []
        self._a = answering
        self._clock = clock
        self.usages = [Usage() for _ in range(num_prompts)]
        self.open = set(range(num_prompts * answering.num_choices))
        self._fresh = set(self.open)
        self._seed_told = False
        self._spelled: Spelled | None = None

    def news(self, prompt: int, output: RequestOutput) -> list[bytes]:
        """Events for one output.

        Raises:
            HeadraceError: the output carries an error.
        """
        self._clock.see(prompt, output)
        self.usages[prompt] = output.usage
        events: list[bytes] = []
        for delta in output.choices:
            index = prompt * self._a.num_choices + delta.index
            if index not in self.open:
                continue
            if index in self._fresh:
                self._fresh.discard(index)
                events += [self._event(c, output) for c in self._a.shape.opening(index, prompt, output)]
            if self._spelled is not None and (is_silent(delta) or plain_text(delta)):
                if text := plain_text(delta):
                    events.append(self._spelled.event(index, prompt, text))
            elif delta.text or delta.token_ids or delta.finish_reason is not None:
                if delta.finish_reason is not None:
                    self.open.discard(index)
                is_last = output.finished and delta is output.choices[-1]
                events.append(self._event(self._a.shape.delta(index, prompt, delta), output, is_last))
        if output.error is not None:
            self._pending = events
            raise output.error
        return events

    def failure(self, error: HeadraceError) -> list[bytes]:
        """The events that end a failed stream."""
        events = list(self._pending)
        for index in sorted(self.open):
            events.append(event(self._a.envelope.chunk([self._a.shape.failed(index)])))
            self._a.served.metrics.finished.labels("error").inc()
        self.open.clear()
        return [*events, event(error_body(error)), DONE]

    def _event(self, choice: dict[str, Any], output: RequestOutput, is_last: bool = False) -> bytes:
        usage = total(self.usages) if self._a.body.wants_usage_everywhere else None
        body = self._a.envelope.chunk([choice], usage)
        if is_last and self._a.body.timings and output.timings:  # an engine that died told none
            body["timings"] = self._a.timings_of(output)
        if not self._seed_told:
            self._seed_told = True
            body["seed"] = output.seed
            if not (self._a.body.wants_usage_everywhere or self._a.body.return_token_ids):
                self._spelled = Spelled(self._a)
        return event(body)
