"""Grammars that are being compiled: off the loop, one after the other, each with a limit on time.

Their requests wait in the scheduler's queue meanwhile, under its bounds.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from typing import Any

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
"""Longest compilation of one matcher; each choice of a request has its own."""
QUICK_S = 0.2
"""A matcher is made in advance of a grammar that takes no longer,"""
RESTOCK_S = 1.0
"""and waited for no longer than this."""
MAX_AHEAD_BYTES = 1 << 30
"""Matchers whose requests have not begun, about; requests of the background may fill half."""


@dataclass(slots=True, kw_only=True)
class Compiled:
    """The end of a compilation: matchers of the group's requests, or an error."""

    group: AddGroup
    matchers: dict[RequestId, Matcher] = field(default_factory=dict[RequestId, Matcher])
    error: HeadraceError | None = None
    slowest_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Of the matchers."""
        return sum(matcher.num_bytes for matcher in self.matchers.values())


class CompileQueue:
    """Compiles the grammars of groups in a thread of its own. The loop's thread calls it.

    Args:
        structured: compiles.
        done: takes each end, called in any thread.
        limit_s: seconds that one matcher may take.
    """

    def __init__(
        self, structured: Structured, done: Callable[[Compiled], None], limit_s: float = COMPILE_S
    ) -> None:
        self._structured = structured
        self._done = done
        self._limit_s = limit_s
        self._turns = Turns()
        self._came = Condition()
        """Guards what follows, and the turns."""
        self._wanted: dict[RequestId, AddGroup] = {}
        self._begun: dict[int, Compiled] = {}
        """By identity of the group: those that wait for the turn of their next matcher."""
        self._held_bytes = 0
        """Of matchers that nobody claimed yet."""
        self.stuck: list[tuple[Thread, str]] = []
        """Threads that took too long, and their tenants."""
        self._thread: Thread | None = None

    def start(self, group: AddGroup) -> None:
        """Begin to compile the grammar of a group, whose requests no other group has."""
        with self._came:
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
        """These requests are over, if they wait here; a group of which nobody is left, too."""
        with self._came:
            for name in request_ids:
                group = self._wanted.pop(name, None)
                if group is not None and not self._wants(group):
                    self._turns.remove(group)
                    begun = self._begun.pop(id(group), None)
                    self._held_bytes -= 0 if begun is None else begun.num_bytes

    @property
    def num_wanted(self) -> int:
        """Requests that wait here."""
        return len(self._wanted)

    @property
    def num_waiting(self) -> int:
        """Groups that wait for their turn."""
        return len(self._turns)

    @property
    def held_bytes(self) -> int:
        """Of matchers that nobody claimed yet, about."""
        return self._held_bytes

    def claim(self, compiled: Compiled) -> tuple[tuple[Request, ...], tuple[Matcher, ...]]:
        """The requests of a compiled group still wanted, with their matchers (none after an error)."""
        group = compiled.group
        with self._came:
            kept = tuple(r for r in group.requests if self._wanted.get(r.request_id) is group)
            for request in kept:
                del self._wanted[request.request_id]
            self._held_bytes -= compiled.num_bytes
        if compiled.error is not None:
            return kept, ()
        return kept, tuple(compiled.matchers[r.request_id] for r in kept)

    def _wants(self, group: AddGroup) -> bool:
        return any(self._wanted.get(r.request_id) is group for r in group.requests)

    # ---- in the thread ----

    def _work(self) -> None:
        while True:
            with self._came:
                while not self._turns:
                    self._came.wait()
                group = self._turns.take()
                made = self._begun.pop(id(group), None) or Compiled(group=group)
                request = self._next_of(made)
            if request is not None:
                self._make(made, request)
            with self._came:
                is_done = made.error is not None or self._next_of(made) is None
                if not is_done:
                    self._begun[id(group)] = made
                    self._turns.put_back(group)
            if is_done:
                self._done(made)
                self._restock(made)

    def _next_of(self, made: Compiled) -> Request | None:
        """Who has no matcher yet, of those that still want one."""
        group = made.group
        for request in group.requests:
            if request.request_id not in made.matchers and self._wanted.get(request.request_id) is group:
                return request
        return None

    def _make(self, made: Compiled, request: Request) -> None:
        """Make a matcher, or an error."""
        began_s = now_s()
        try:
            self._check(request)
            self._structured.prepare()  # not on the time of the first request that asks
            (matcher,) = self._within(partial(self._structured.compile, (request,)), request, self._limit_s)
        except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
            made.error = error_of(fault_of(error))
        else:
            made.matchers[request.request_id] = matcher
            with self._came:
                self._held_bytes += matcher.num_bytes
        took_s = now_s() - began_s
        made.slowest_s = max(made.slowest_s, took_s)
        with self._came:
            self._turns.charge(made.group, took_s)

    def _restock(self, made: Compiled) -> None:
        """Make a matcher in advance when nobody waits, on the account of who came last."""
        request, began_s = made.group.requests[0], now_s()
        if self._turns or made.error is not None or not made.matchers or made.slowest_s > QUICK_S:
            return
        with suppress(HeadraceError):
            self._check(request)
            self._within(partial(self._structured.restock, made.group.requests), request, RESTOCK_S)
        with self._came:
            self._turns.charge(made.group, now_s() - began_s)

    def _check(self, request: Request) -> None:
        """Look whether one more matcher may be made.

        Raises:
            OverloadError: too much is stuck, or waits with its matcher.
        """
        self.stuck = [entry for entry in self.stuck if entry[0].is_alive()]
        num_own = sum(name == request.terms.tenant.name for _, name in self.stuck)
        if len(self.stuck) >= MAX_STUCK or num_own >= MAX_OWN_STUCK:
            text = "grammars that take too long are still being compiled"
            raise OverloadError(text, retry_after_s=5.0)
        ahead = self._held_bytes + self._structured.ahead_bytes
        limit = MAX_AHEAD_BYTES // 2 if request.terms.is_background else MAX_AHEAD_BYTES
        if ahead >= limit:
            raise OverloadError(
                f"compiled grammars of waiting requests take about {ahead >> 20} MiB, limit {limit >> 20}; "
                "try again later, or ask for fewer choices",
                retry_after_s=5.0,
            )

    def _within(self, work: Callable[[], Any], request: Request, limit_s: float) -> Any:
        """Do it, or give up waiting for it: a thread cannot be ended from outside.

        Raises:
            HeadraceError: what the work raised; it takes too long; there is no thread for it.
        """
        ends: list[Any] = []
        thread = Thread(target=_run, args=(work, ends), name="headrace-grammar", daemon=True)
        if not _has_started(thread):
            raise _no_thread()
        thread.join(limit_s)
        if not ends:
            self.stuck.append((thread, request.terms.tenant.name))
            text = f"the grammar takes longer than {limit_s:g} s to compile; make it simpler"
            raise RequestError(text, param=PARAM)
        if isinstance(ends[0], HeadraceError):
            raise ends[0]
        return ends[0]


def _run(work: Callable[[], Any], ends: list[Any]) -> None:
    try:
        ends.append(work())
    except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
        ends.append(error_of(fault_of(error)))


def _has_started(thread: Thread) -> bool:
    """Start it; False: the machine has no thread left, or no memory for one."""
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        return False
    return True


def _no_thread() -> OverloadError:
    return OverloadError("the machine has no thread left to compile a grammar", retry_after_s=5.0)
