"""Requests whose grammar is being compiled: off the loop, one after the other, each with a limit on time."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

from headrace.base.errors import HeadraceError, OverloadError, RequestError
from headrace.base.faults import error_of, fault_of
from headrace.base.grammar import PARAM
from headrace.base.ids import RequestId
from headrace.base.messages import AddGroup
from headrace.base.request import Request
from headrace.engine.grammars.structured import Structured
from headrace.host.grammar.matcher import Matcher

MAX_WAITING = 256
"""Most sequences that wait for their grammar, rounded up to a group."""
MAX_STUCK = 4
"""Most compilations over their limit that may still run; while there are that many, none is begun."""
COMPILE_S = 10.0


@dataclass(slots=True, kw_only=True)
class Compiled:
    """The end of a compilation: matchers of the group's requests, or an error."""

    group: AddGroup
    matchers: tuple[Matcher, ...] = ()
    error: HeadraceError | None = None


class CompileQueue:
    """Compiles the grammars of groups in a thread of its own. The loop's thread calls it.

    Args:
        structured: compiles.
        done: takes each end, called in another thread.
        limit_s: seconds that one grammar may take.
    """

    def __init__(
        self, structured: Structured, done: Callable[[Compiled], None], limit_s: float = COMPILE_S
    ) -> None:
        self._structured = structured
        self._done = done
        self._limit_s = limit_s
        self._jobs: SimpleQueue[AddGroup] = SimpleQueue()
        self._wanted: dict[RequestId, AddGroup] = {}
        self._stuck: list[Thread] = []
        self._thread: Thread | None = None

    def start(self, group: AddGroup) -> None:
        """Begin to compile the grammar of a group.

        Raises:
            OverloadError: too many wait.
            RequestError: a request id is in use.
        """
        if len(self._wanted) >= MAX_WAITING:
            raise OverloadError(
                f"{MAX_WAITING} sequences wait for their grammar to be compiled; try again later",
                retry_after_s=1.0,
            )
        names = [r.request_id for r in group.requests]
        if not self._wanted.keys().isdisjoint(names):
            raise RequestError(f"request id in use: {', '.join(sorted(names))}", param="request_id")
        self._wanted.update(dict.fromkeys(names, group))
        if self._thread is None:
            self._thread = Thread(target=self._work, name="headrace-grammars", daemon=True)
            self._thread.start()
        self._jobs.put(group)

    def finish(self, request_ids: Iterable[RequestId]) -> tuple[RequestId, ...]:
        """Those of these requests that wait here; they no longer do."""
        return tuple(name for name in request_ids if self._wanted.pop(name, None) is not None)

    def claim(self, compiled: Compiled) -> tuple[tuple[Request, ...], tuple[Matcher, ...]]:
        """The requests of a compiled group still wanted, with their matchers (none after an error)."""
        group = compiled.group
        kept = [i for i, r in enumerate(group.requests) if self._wanted.get(r.request_id) is group]
        for i in kept:
            del self._wanted[group.requests[i].request_id]
        requests = tuple(group.requests[i] for i in kept)
        return requests, tuple(compiled.matchers[i] for i in kept) if compiled.matchers else ()

    # ---- in the thread ----

    def _work(self) -> None:
        while True:
            group = self._jobs.get()
            if any(self._wanted.get(r.request_id) is group for r in group.requests):
                made = self._compile(group)
                self._done(made)
                if made.error is None and self._jobs.empty():
                    with suppress(BaseException):  # a panic of the library must not end this thread
                        self._structured.restock(group.requests)

    def _compile(self, group: AddGroup) -> Compiled:
        """Compile, or give up waiting for it: a thread cannot be ended from outside."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK:
            return Compiled(
                group=group,
                error=OverloadError(
                    "grammars that take too long are still being compiled", retry_after_s=5.0
                ),
            )
        made = Compiled(group=group)
        try:
            self._structured.prepare()  # not on the time of the first request that asks
        except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
            return Compiled(group=group, error=error_of(fault_of(error)))
        thread = Thread(target=self._fill, args=(made,), name="headrace-grammar", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if not thread.is_alive():
            return made
        self._stuck.append(thread)
        text = f"the grammar takes longer than {self._limit_s:g} s to compile; make it simpler"
        return Compiled(group=group, error=RequestError(text, param=PARAM))

    def _fill(self, made: Compiled) -> None:
        try:
            made.matchers = self._structured.compile(made.group.requests)
        except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
            made.error = error_of(fault_of(error))
