"""The real scheduler on the cost model, in virtual time: what traffic a number of engines bears.

Every engine has its own clock. Of all that can happen next, the earliest does: an arrival, which goes to the
engine with the fewest unfinished requests, or a step of the engine whose clock is behind the others.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.base.errors import ConfigError, InvariantError, OverloadError
from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from headrace.base.step import Delta, Row, RowResult, SequenceTiming, StepResult
from headrace.engine.sim import SimClock
from headrace.host.sched.scheduler import Scheduler
from headrace.tools.plan.traffic import Ask, Traffic, asks

MakeScheduler = Callable[[Callable[[], float]], Scheduler]
TOKEN = 0
"""What every simulated row draws."""
MAX_REPLICAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """A request that ended."""

    number: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    num_preempted: int
    is_late: bool
    """It ended with an error: it had waited longer than the settings allow."""
    timing: SequenceTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of the traffic."""

    lives: tuple[Lived, ...]
    refused: int
    """Requests that were turned away because a queue was full."""
    busy_s: tuple[float, ...]
    """Seconds of steps, by engine."""
    seconds: float
    """First arrival to last end."""


class _Engine:
    """A scheduler whose steps take virtual time."""

    def __init__(self, make: MakeScheduler, step_s: Callable[[Sequence[Row]], float]) -> None:
        self.clock = SimClock()
        self.scheduler = make(self.clock.now_s)
        self.asked: dict[RequestId, Ask] = {}
        """Unfinished requests."""
        self._cached: dict[RequestId, int] = {}
        self.busy_s = 0.0
        self._step_s = step_s

    def add(self, ask: Ask, arrival_s: float) -> bool:
        """Queue a request; false when it is turned away."""
        if not self.asked:
            self.clock.time_s = max(self.clock.time_s, arrival_s)
        request = Request(
            request_id=RequestId(f"sim-{ask.number}"),
            prompt_ids=ask.prompt,
            sampling=SamplingParams(max_tokens=ask.output_tokens, seed=0),
            arrival_s=arrival_s,
        )
        try:
            self.scheduler.add_group((request,))
        except OverloadError:
            return False
        self.asked[request.request_id] = ask
        return True

    def step(self) -> list[Lived]:
        """One step, or the wait for the moment at which one can be; who ended."""
        ended = list(self.scheduler.expire())
        plan = self.scheduler.plan()
        if plan is None:
            self.clock.advance(self.scheduler.next_wakeup_s() or 0.0)
        else:
            seconds = self._step_s(plan.rows)
            self.clock.advance(seconds)
            self.busy_s += seconds
            rows = tuple(RowResult(r.slot, r.lease, (TOKEN,) if r.sample else ()) for r in plan.rows)
            result = StepResult(step=plan.step, rows=rows, seconds=seconds)
            ended += self.scheduler.commit(result).deltas
        for delta in ended:
            if delta.cached_tokens:  # told with the first token
                self._cached[delta.request_id] = delta.cached_tokens
        return [self._lived(delta) for delta in ended if delta.finish is not None]

    def _lived(self, delta: Delta) -> Lived:
        ask = self.asked.pop(delta.request_id)
        if delta.timing is None:
            raise InvariantError(f"request {delta.request_id!r} ended without its timing")
        return Lived(
            number=ask.number,
            prompt_tokens=len(ask.prompt),
            cached_tokens=self._cached.pop(delta.request_id, 0),
            output_tokens=ask.output_tokens,
            num_preempted=delta.num_preempted,
            is_late=delta.error is not None,
            timing=delta.timing,
        )


def simulate(
    traffic: Traffic, make: MakeScheduler, step_s: Callable[[Sequence[Row]], float], *, replicas: int = 1
) -> Simulated:
    """Run the traffic to its end.

    Args:
        traffic: what comes.
        make: makes a scheduler that reads the clock it is given.
        step_s: seconds of a step with these rows.
        replicas: engines.

    Raises:
        ConfigError: no engines.
        CapacityError, ContextLengthError: a request can never run with these settings.
    """
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ConfigError(f"--replicas must be in [1, {MAX_REPLICAS}], got {replicas}")
    engines = [_Engine(make, step_s) for _ in range(replicas)]
    source = asks(traffic)
    start_s = engines[0].clock.time_s
    arrivals: list[tuple[float, int, Ask]] = []
    if traffic.users is None:
        arrivals = [(start_s + (ask.arrival_s or 0.0), ask.number, ask) for ask in source]
    else:
        first = list(islice(source, traffic.users))
        arrivals = [(start_s, ask.number, ask) for ask in first]
    heapq.heapify(arrivals)
    lives: list[Lived] = []
    refused = 0
    began_s = arrivals[0][0]
    while True:
        busy = min((e for e in engines if e.asked), key=lambda e: e.clock.time_s, default=None)
        if arrivals and (busy is None or arrivals[0][0] <= busy.clock.time_s):
            arrival_s, _, ask = heapq.heappop(arrivals)
            refused += not min(engines, key=lambda e: len(e.asked)).add(ask, arrival_s)
            continue
        if busy is None:
            break
        for life in busy.step():
            lives.append(life)
            following = next(source, None) if traffic.users is not None else None
            if following is not None:
                heapq.heappush(arrivals, (busy.clock.time_s, following.number, following))
    end_s = max((life.timing.finished_s for life in lives), default=began_s)
    return Simulated(
        lives=tuple(lives),
        refused=refused,
        busy_s=tuple(e.busy_s for e in engines),
        seconds=end_s - began_s,
    )
