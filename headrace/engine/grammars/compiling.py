"""Grammars that are being compiled: off the loop, one after the other, each with a limit on time.

Their requests wait in the scheduler's queue meanwhile, under its bounds.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread

from headrace.base.clock import now_s
from headrace.base.errors import HeadraceError, OverloadError, RequestError
from headrace.base.faults import error_of, fault_of
from headrace.base.grammar import PARAM
from headrace.base.ids import RequestId
from headrace.base.messages import AddGroup
from headrace.base.request import Request
from headrace.engine.grammars.structured import Structured
from headrace.engine.grammars.turns import Turns
from headrace.host.grammar.matcher import Matcher

MAX_STUCK = 4
"""Most compilations over their limit that may still run; while there are that many, none is begun."""
MAX_OWN_STUCK = 2
"""The same of one tenant, for this tenant."""
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
        done: takes each end, called in any thread.
        limit_s: seconds that one grammar may take.
    """

    def __init__(
        self, structured: Structured, done: Callable[[Compiled], None], limit_s: float = COMPILE_S
    ) -> None:
        self._structured = structured
        self._done = done
        self._limit_s = limit_s
        self._turns = Turns()
        self._came = Condition()
        """Guards the turns."""
        self._wanted: dict[RequestId, AddGroup] = {}
        self._stuck: list[tuple[Thread, str]] = []
        """Threads that took too long, and their tenants."""
        self._thread: Thread | None = None

    def start(self, group: AddGroup) -> None:
        """Begin to compile the grammar of a group, whose requests no other group has."""
        self._wanted.update(dict.fromkeys((r.request_id for r in group.requests), group))
        if self._thread is None or not self._thread.is_alive():
            thread = Thread(target=self._work, name="headrace-grammars", daemon=True)
            if not _has_started(thread):
                self._done(Compiled(group=group, error=_no_thread()))
                return
            self._thread = thread
        with self._came:
            self._turns.put(group)
            self._came.notify()

    def drop(self, request_ids: Iterable[RequestId]) -> None:
        """These requests are over, if they wait here."""
        for name in request_ids:
            self._wanted.pop(name, None)

    @property
    def num_wanted(self) -> int:
        """Requests that wait here."""
        return len(self._wanted)

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
            with self._came:
                while not self._turns:
                    self._came.wait()
                group = self._turns.take()
            if not any(self._wanted.get(r.request_id) is group for r in group.requests):
                continue
            began_s = now_s()
            made = self._compile(group)
            with self._came:
                self._turns.charge(group, now_s() - began_s)
                is_last = not self._turns
            self._done(made)
            if made.error is None and is_last:
                with suppress(BaseException):  # a panic of the library must not end this thread
                    self._structured.restock(group.requests)

    def _compile(self, group: AddGroup) -> Compiled:
        """Compile, or give up waiting for it: a thread cannot be ended from outside."""
        self._stuck = [entry for entry in self._stuck if entry[0].is_alive()]
        tenant = group.requests[0].terms.tenant.name
        num_own = sum(name == tenant for _, name in self._stuck)
        if len(self._stuck) >= MAX_STUCK or num_own >= MAX_OWN_STUCK:
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
        if not _has_started(thread):
            return Compiled(group=group, error=_no_thread())
        thread.join(self._limit_s)
        if not thread.is_alive():
            return made
        self._stuck.append((thread, tenant))
        text = f"the grammar takes longer than {self._limit_s:g} s to compile; make it simpler"
        return Compiled(group=group, error=RequestError(text, param=PARAM))

    def _fill(self, made: Compiled) -> None:
        try:
            made.matchers = self._structured.compile(made.group.requests)
        except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
            made.error = error_of(fault_of(error))


def _has_started(thread: Thread) -> bool:
    """Start it; False: the machine has no thread left, or no memory for one."""
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return False
    return True


def _no_thread() -> OverloadError:
    return OverloadError("the machine has no thread left to compile a grammar", retry_after_s=5.0)
