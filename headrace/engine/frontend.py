"""What `LLM` and `AsyncLLM` share: it prepares requests, routes events to them, and knows how the engine is.

Thread-safe. Outputs are handed to a request's sink in the thread that receives events.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock

from headrace.base.clock import now_s
from headrace.base.errors import EngineDeadError, HeadraceError, RequestError
from headrace.base.faults import error_of, fault_of
from headrace.base.ids import RequestId
from headrace.base.messages import (
    AddGroup,
    AskPicture,
    AskStats,
    AskTimelines,
    Event,
    Failed,
    Finish,
    News,
    Picture,
    Ready,
    Refused,
    Stats,
    Timelines,
)
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import FinishReason
from headrace.base.step import Delta
from headrace.engine.build import OpenedModel
from headrace.engine.client import CoreClient
from headrace.engine.intake import Ask, Intake, Prepared
from headrace.engine.output import Answer
from headrace.engine.outputs import EngineHealth, EngineStats, RequestOutput
from headrace.engine.timelines.store import TimelineStore, begun, called, extended, own_view
from headrace.engine.watch import Watch

Reply = Stats | Picture | Timelines
Sink = Callable[[RequestOutput | HeadraceError], None]
"""Takes a request's outputs; an error instead of the first output means that the request was refused."""
STATS_TIMEOUT_S = 10.0


class Frontend:
    """Requests on one side, a running engine on the other.

    Args:
        opened: the model's text side and resolved settings.
        client: the engine; started here.
    """

    def __init__(self, opened: OpenedModel, client: CoreClient) -> None:
        resolved = opened.resolved
        self.opened = opened
        self.intake = Intake(
            opened.text,
            resolved.model.vocab_size,
            resolved.max_model_len,
            resolved.config.model.seed,
            resolved.speculation,
        )
        self.timelines = TimelineStore(resolved.config.observe.timelines)
        self._client = client
        self._watch = Watch(client.beat, resolved.config.watch.stall_s)
        self._lock = Lock()
        self._answers: dict[str, tuple[Answer, Sink]] = {}
        self._owner_by_sequence: dict[RequestId, str] = {}
        self._asked: dict[int, SimpleQueue[Reply | None]] = {}
        self._ask_ids = count()
        self._is_closing = False
        self._death = ""
        client.start(self._on_event)

    # ---- requests ----

    def submit(self, ask: Ask, sink: Sink) -> Prepared:
        """Prepare a request and give it to the engine (tokenizes: keep long texts off an event loop).

        Raises:
            RequestError: the request is invalid, or its id is in use.
            EngineDeadError: the engine is not running, or is closing.
        """
        prepared = self.intake.prepare(ask)
        answer = Answer(prepared, self.opened.text)
        with self._lock:
            if self._is_closing:
                raise EngineDeadError("the engine is closing and takes no new requests")
            if any(r.request_id in self._owner_by_sequence for r in prepared.requests):
                raise RequestError(f"request id in use: {prepared.request_id!r}", param="request_id")
            self._answers[prepared.request_id] = (answer, sink)
            for request in prepared.requests:
                self._owner_by_sequence[request.request_id] = prepared.request_id
        try:
            self._client.send(AddGroup(requests=prepared.requests))
        except BaseException:
            self._forget(prepared.request_id)
            raise
        return prepared

    def cancel(self, prepared: Prepared) -> None:
        """`abort` for whoever submitted it; another request that has its id by now is left alone."""
        self._abort(prepared.request_id, prepared)

    def abort(self, request_id: str) -> bool:
        """Ask the engine to end a request, whose last output then says `abort`; False: unknown."""
        return self._abort(request_id, None)

    def _abort(self, request_id: str, owner: Prepared | None) -> bool:
        with self._lock:
            entry = self._answers.get(request_id)
            if entry is None or (owner is not None and entry[0].prepared is not owner):
                return False
            open_ids = entry[0].open_ids
        if not open_ids:
            return False
        try:
            self._client.send(Finish(request_ids=open_ids, reason=FinishReason.ABORT))
        except EngineDeadError:
            return False
        return True

    @property
    def num_active(self) -> int:
        """Requests that are not finished."""
        with self._lock:
            return len(self._answers)

    # ---- the engine ----

    def stats(self) -> EngineStats:
        """Counters and gauges; waits for the end of the current step.

        Raises:
            EngineDeadError: the engine is not running, or does not answer in time.
        """
        found = self._ask(AskStats(ask_id=next(self._ask_ids)))
        if not isinstance(found, Stats):
            raise EngineDeadError("the engine ended before it gave statistics")
        return EngineStats(counters=found.counters, gauges=found.gauges)

    def picture(self) -> Picture:
        """Who runs, and what each KV block is; waits for the end of the current step.

        Raises:
            EngineDeadError: the engine is not running, or does not answer in time.
        """
        found = self._ask(AskPicture(ask_id=next(self._ask_ids)))
        if not isinstance(found, Picture):
            raise EngineDeadError("the engine ended before it showed its state")
        return found

    def timeline(self, tenant: str, name: str) -> Timeline | None:
        """Where the time of a tenant's request went, up to now while it runs; None: there is none.

        `name` is its id, or what the client called it. Waits for the end of the current step.

        Raises:
            EngineDeadError: it is running, and the engine does not answer.
        """
        with self._lock:
            own = {i: a.prepared for i, (a, _) in self._answers.items() if a.prepared.tenant == tenant}
        for request_id in called(name, list(own)):
            prepared = own[request_id]
            ids = tuple(r.request_id for r in prepared.requests)
            found = self._ask(AskTimelines(ask_id=next(self._ask_ids), request_ids=ids))
            if isinstance(found, Timelines) and found.timelines:
                return own_view(begun(found.timelines[0], request_id, prepared.begun_s), tenant)
        return self.timelines.find(tenant, name)

    def _ask(self, question: AskStats | AskPicture | AskTimelines) -> Reply | None:
        replies = SimpleQueue[Reply | None]()
        with self._lock:
            self._asked[question.ask_id] = replies
        try:
            self._client.send(question)
            return replies.get(timeout=STATS_TIMEOUT_S)
        except Empty:
            raise EngineDeadError(f"the engine did not answer within {STATS_TIMEOUT_S:g} s") from None
        finally:
            with self._lock:
                self._asked.pop(question.ask_id, None)

    def health(self) -> EngineHealth:
        """How the engine is; never waits."""
        return self._watch.health(self._death, is_closing=self._is_closing)

    def stop_admitting(self) -> None:
        """Refuse new requests from now on."""
        with self._lock:
            self._is_closing = True

    def abort_all(self) -> None:
        """Ask the engine to end every request."""
        with self._lock:
            names = list(self._answers)
        for name in names:
            self.abort(name)

    def close(self) -> None:
        """End the engine; requests that are still open get an error."""
        self.stop_admitting()
        self._client.close()
        self._fail_all(EngineDeadError("the engine was closed"))

    # ---- events ----

    def _on_event(self, event: Event) -> None:
        if isinstance(event, News):
            self._on_news(event)
        elif isinstance(event, Refused):
            self._on_refused(event)
        elif isinstance(event, Reply):
            with self._lock:
                replies = self._asked.get(event.ask_id)
            if replies is not None:
                replies.put(event)
        elif isinstance(event, Failed):
            self._death = event.fault.message
            self._fail_all(EngineDeadError(f"the engine has stopped: {event.fault.message}"))
        elif isinstance(event, Ready):
            self._death = ""

    def _on_news(self, news: News) -> None:
        by_request: defaultdict[str, list[Delta]] = defaultdict(list)
        with self._lock:
            for delta in news.deltas:
                owner = self._owner_by_sequence.get(delta.request_id)
                if owner is not None:
                    by_request[owner].append(delta)
            entries = [(self._answers[name], deltas) for name, deltas in by_request.items()]
        to_stop: list[RequestId] = []
        for (answer, sink), deltas in entries:
            output, stops = _take(answer, deltas)
            to_stop.extend(stops)
            if answer.is_finished:
                self._forget(answer.prepared.request_id)
                self._keep_timeline(answer)
            if output is not None:
                sink(output)
        if to_stop:
            # The engine may die in this very moment; its death is an event of its own.
            with suppress(EngineDeadError):
                self._client.send(Finish(request_ids=tuple(to_stop), reason=FinishReason.STOP))

    def _keep_timeline(self, answer: Answer) -> None:
        prepared, ended = answer.prepared, answer.timeline
        if ended is not None:
            whole = begun(ended, prepared.request_id, prepared.begun_s)
            self.timelines.keep(prepared.tenant, extended(whole, now_s()))

    def _on_refused(self, event: Refused) -> None:
        with self._lock:
            owner = self._owner_by_sequence.get(event.request_ids[0])
        if owner is None:
            return
        entry = self._forget(owner)
        if entry is not None:
            entry[1](error_of(event.fault))

    def _fail_all(self, error: HeadraceError) -> None:
        with self._lock:
            entries = list(self._answers.values())
            self._answers.clear()
            self._owner_by_sequence.clear()
            for replies in self._asked.values():
                replies.put(None)
        for answer, sink in entries:
            output = answer.fail(error)
            if output is not None:
                sink(output)

    def _forget(self, request_id: str) -> tuple[Answer, Sink] | None:
        with self._lock:
            entry = self._answers.pop(request_id, None)
            if entry is not None:
                for request in entry[0].prepared.requests:
                    self._owner_by_sequence.pop(request.request_id, None)
        return entry


def _take(answer: Answer, deltas: list[Delta]) -> tuple[RequestOutput | None, tuple[RequestId, ...]]:
    """`Answer.take`; what goes wrong in one answer ends that answer, not the thread that serves all."""
    try:
        return answer.take(deltas)
    except Exception as error:  # noqa: BLE001 - the border between requests: the caller is told
        open_ids = answer.open_ids
        return answer.fail(error_of(fault_of(error))), open_ids


def wait_until_idle(frontend: Frontend, seconds: float) -> bool:
    """Whether all requests finished within that time; polls."""
    until_s = now_s() + seconds
    pause: SimpleQueue[None] = SimpleQueue()
    while frontend.num_active and now_s() < until_s:
        try:
            pause.get(timeout=0.01)
        except Empty:
            continue
    return frontend.num_active == 0
