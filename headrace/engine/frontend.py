"""What `LLM` and `AsyncLLM` share: it prepares requests, routes events to them, and knows how the engine is.

Thread-safe. Outputs are handed to a request's sink in the thread that receives events.
"""

from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock

from headrace.base.clock import now_s
from headrace.base.errors import EngineDeadError, HeadraceError, RequestError
from headrace.base.faults import error_of, fault_of
from headrace.base.ids import RequestId, engine_id
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

Question = AskStats | AskPicture | AskTimelines
Reply = Stats | Picture | Timelines
OnReply = Callable[[Reply | None], None]
Sink = Callable[[RequestOutput | HeadraceError], None]
"""Takes a request's outputs; an error instead of the first output means that the request was refused."""
ANSWER_S = 10.0
"""So long an engine may take to answer a question: to the end of its current step."""


class Questions:
    """What users want to know of the engine, which answers with events. Thread-safe.

    Args:
        client: the engine.
    """

    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._lock = Lock()
        self._ids = count()
        self._on_reply: dict[int, OnReply] = {}

    @property
    def num_open(self) -> int:
        """Questions without an answer."""
        return len(self._on_reply)

    def ask(self, make: Callable[[int], Question]) -> Reply | None:
        """The answer; blocks this thread. None: the engine died meanwhile.

        Args:
            make: the question with an id.

        Raises:
            EngineDeadError: the engine is not running, or does not answer in time.
        """
        replies = SimpleQueue[Reply | None]()
        with self._asked(make, replies.put):
            try:
                return replies.get(timeout=ANSWER_S)
            except Empty:
                raise _silent() from None

    async def ask_soon(self, make: Callable[[int], Question]) -> Reply | None:
        """`ask` for event loops: however many wait for the engine, they keep no thread from others."""
        import asyncio  # noqa: PLC0415 - programs without an event loop need not load it

        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def settle(reply: Reply | None) -> None:
            if not answer.done():
                answer.set_result(reply)

        def on_reply(reply: Reply | None) -> None:
            with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, reply)

        with self._asked(make, on_reply):
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await answer
            except TimeoutError:
                raise _silent() from None

    @contextmanager
    def _asked(self, make: Callable[[int], Question], on_reply: OnReply) -> Generator[None]:
        ask_id = next(self._ids)
        with self._lock:
            self._on_reply[ask_id] = on_reply
        try:
            self._client.send(make(ask_id))
            yield
        finally:
            with self._lock:
                self._on_reply.pop(ask_id, None)

    def answer(self, reply: Reply) -> None:
        """Hand an answer to whoever asked, if they still wait."""
        with self._lock:
            on_reply = self._on_reply.get(reply.ask_id)
        if on_reply is not None:
            on_reply(reply)

    def give_up(self) -> None:
        """The engine died: nobody need wait longer."""
        with self._lock:
            waiting = list(self._on_reply.values())
        for on_reply in waiting:
            on_reply(None)


class Frontend:
    """Requests on one side, a running engine on the other.

    Args:
        opened: the model's text side and resolved settings.
        client: the engine; started here.
        keeps_timelines: somebody may ask for the timelines of requests that ended.
    """

    def __init__(self, opened: OpenedModel, client: CoreClient, *, keeps_timelines: bool = False) -> None:
        resolved = opened.resolved
        self.opened = opened
        self.intake = Intake(
            opened.text,
            resolved.model.vocab_size,
            resolved.max_model_len,
            resolved.config.model.seed,
            resolved.speculation,
        )
        self.timelines = TimelineStore(resolved.config.observe.timelines if keeps_timelines else 0)
        self._client = client
        self._watch = Watch(client.beat, resolved.config.watch.stall_s)
        self._lock = Lock()
        self._answers: dict[RequestId, tuple[Answer, Sink]] = {}
        self._owner_by_sequence: dict[RequestId, RequestId] = {}
        self.questions = Questions(client)
        self._is_closing = False
        self._death = ""
        client.start(self._on_event)

    # ---- requests ----

    def submit(self, ask: Ask, sink: Sink) -> Prepared:
        """Prepare a request and give it to the engine (tokenizes: keep long texts off an event loop).

        Raises:
            RequestError: the request is invalid, or its tenant has another of its id.
            EngineDeadError: the engine is not running, or is closing.
        """
        prepared = self.intake.prepare(ask)
        answer = Answer(prepared, self.opened.text)
        with self._lock:
            if self._is_closing:
                raise EngineDeadError("the engine is closing and takes no new requests")
            if any(r.request_id in self._owner_by_sequence for r in prepared.requests):
                raise RequestError(f"request id in use: {prepared.request_id!r}", param="request_id")
            self._answers[prepared.leader_id] = (answer, sink)
            for request in prepared.requests:
                self._owner_by_sequence[request.request_id] = prepared.leader_id
        try:
            self._client.send(AddGroup(requests=prepared.requests))
        except BaseException:
            self._forget(prepared.leader_id)
            raise
        return prepared

    def cancel(self, prepared: Prepared) -> None:
        """`abort` for whoever submitted it; another request that has its id by now is left alone."""
        self._abort(prepared.leader_id, prepared)

    def abort(self, request_id: str, tenant: str = "") -> bool:
        """Ask the engine to end a tenant's request, whose last output then says `abort`; False: unknown."""
        return self._abort(engine_id(tenant, request_id), None)

    def _abort(self, request_id: RequestId, owner: Prepared | None) -> bool:
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
        return _stats(self.questions.ask(lambda ask_id: AskStats(ask_id=ask_id)))

    async def stats_soon(self) -> EngineStats:
        """`stats` for event loops."""
        return _stats(await self.questions.ask_soon(lambda ask_id: AskStats(ask_id=ask_id)))

    async def picture(self) -> Picture:
        """Who runs, and what each KV block is; waits for the end of the current step.

        Raises:
            EngineDeadError: the engine is not running, or does not answer in time.
        """
        found = await self.questions.ask_soon(lambda ask_id: AskPicture(ask_id=ask_id))
        if not isinstance(found, Picture):
            raise EngineDeadError("the engine ended before it showed its state")
        return found

    async def timeline(self, tenant: str, name: str) -> Timeline | None:
        """Where the time of a tenant's request went, up to now while it runs; None: there is none.

        `name` is its id, or what the client called it. Waits for the end of the current step.

        Raises:
            EngineDeadError: it is running, and the engine does not answer.
        """
        with self._lock:
            mine = [a.prepared for a, _ in self._answers.values() if a.prepared.tenant == tenant]
        own = {prepared.request_id: prepared for prepared in mine}
        for request_id in called(name, {i: prepared.part_of for i, prepared in own.items()}):
            prepared = own[request_id]
            ids = tuple(r.request_id for r in prepared.requests)
            found = await self.questions.ask_soon(partial(_ask_timelines, ids))
            if not isinstance(found, Timelines):
                raise EngineDeadError("the engine ended before it said where the time of the request went")
            if found.timelines:
                return own_view(begun(found.timelines[0], request_id, prepared.begun_s), tenant)
        return self.timelines.find(tenant, name)  # if it was running, it has ended meanwhile

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
            self._abort(name, None)

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
            self.questions.answer(event)
        elif isinstance(event, Failed):
            self._death = event.fault.message
            self._fail_all(EngineDeadError(f"the engine has stopped: {event.fault.message}"))
        elif isinstance(event, Ready):
            self._death = ""

    def _on_news(self, news: News) -> None:
        by_request: defaultdict[RequestId, list[Delta]] = defaultdict(list)
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
                self._forget(answer.prepared.leader_id)
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
            self.timelines.keep(prepared.tenant, extended(whole, now_s()), prepared.part_of)

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
        for answer, sink in entries:
            output = answer.fail(error)
            if output is not None:
                sink(output)
        self.questions.give_up()

    def _forget(self, request_id: RequestId) -> tuple[Answer, Sink] | None:
        with self._lock:
            entry = self._answers.pop(request_id, None)
            if entry is not None:
                for request in entry[0].prepared.requests:
                    self._owner_by_sequence.pop(request.request_id, None)
        return entry


def _silent() -> EngineDeadError:
    return EngineDeadError(f"the engine did not answer within {ANSWER_S:g} s")


def _stats(found: Reply | None) -> EngineStats:
    if not isinstance(found, Stats):
        raise EngineDeadError("the engine ended before it gave statistics")
    return EngineStats(counters=found.counters, gauges=found.gauges)


def _ask_timelines(request_ids: tuple[RequestId, ...], ask_id: int) -> AskTimelines:
    return AskTimelines(ask_id=ask_id, request_ids=request_ids)


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
