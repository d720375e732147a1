"""More and more load until the server keeps up no longer.

Open loop: saturated when requests are completed at less than 90 % of the rate at which they came. With a
constant latency both rates are equal, however long it is: a short run does not look saturated. Closed loop:
saturated when more users bring less than 5 % more tokens a second. Either: more than 5 % of requests fail.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.base.errors import RequestError
from headrace.tools.bench.ask import Outcome, Wish
from headrace.tools.bench.drive import Load, OnDone
from headrace.tools.bench.run import MAX_USERS, Plan, measure
from headrace.tools.bench.summary import Summary, summarize
from headrace.tools.bench.wire import Client

RATE_FACTOR = 1.5
USERS_FACTOR = 2
MAX_STEPS = 16
KEPT_UP = 0.9
LEAST_GAIN = 1.05
FAILED = 0.05
GOOD = 0.9
"""Share of requests that must be within the objectives."""


@dataclass(frozen=True, slots=True)
class Step:
    """One level of load."""

    level: float
    """Requests a second, or users."""
    summary: Summary
    completion_rate: float
    """Requests completed a second, between the first and the last completion."""
    reason: str
    """Why the server is saturated here; empty: it is not."""
    is_good: bool
    """Within the objectives for at least 90 % of requests; true where there are none."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """All levels in order."""

    unit: str
    """`requests/s` or `users`."""
    steps: tuple[Step, ...]
    is_cut: bool = False
    """It was interrupted; the level that was under way is not in it."""

    @property
    def sustained(self) -> Step | None:
        """The highest level that is neither saturated nor outside the objectives."""
        return next((s for s in reversed(self.steps) if not s.reason and s.is_good), None)

    @property
    def is_saturated(self) -> bool:
        """Whether the ramp found the end."""
        return bool(self.steps[-1].reason)


async def ramp(
    client: Client,
    wish: Wish,
    plan: Plan,
    on_step: Callable[[float], None] | None = None,
    on_done: OnDone | None = None,
) -> Ramp:
    """Raise the load from the plan's own level until the server is saturated, or 16 levels are through.

    Raises:
        RequestError: a trace or an infinite rate, which cannot be raised.
    """
    if plan.speed is not None or (plan.arrivals is not None and math.isinf(plan.arrivals.rate)):
        raise RequestError("--ramp raises a finite --rate or --concurrency", param="ramp")
    steps: list[Step] = []
    is_cut = False
    for number in range(MAX_STEPS):
        level, at = _raised(plan, number)
        if at.users is not None and at.users > MAX_USERS:
            break
        if on_step is not None:
            on_step(level)
        try:
            load = await measure(client, wish, at.seeded(plan.dataset.seed + number), on_done)
        except asyncio.CancelledError:
            if not steps:
                raise
            is_cut = True
            break
        steps.append(_step(level, load, at, steps[-1] if steps else None))
        if steps[-1].reason:
            break
    return Ramp("users" if plan.users is not None else "requests/s", tuple(steps), is_cut)


def _raised(plan: Plan, number: int) -> tuple[float, Plan]:
    if plan.users is not None:
        users = plan.users * USERS_FACTOR**number
        return users, replace(plan, users=users)
    assert plan.arrivals is not None
    rate = plan.arrivals.rate * RATE_FACTOR**number
    return rate, replace(plan, arrivals=replace(plan.arrivals, rate=rate))


def _step(level: float, load: Load, plan: Plan, before: Step | None) -> Step:
    summary = summarize(load, plan.slo)
    came, completed = rates_of(load.outcomes)
    share = summary.rates.good_share
    is_good = share is None or share >= GOOD
    failed = sum(summary.failures.values())
    gain = summary.rates.output_tokens / before.summary.rates.output_tokens if before else math.inf
    reason = ""
    if failed > FAILED * summary.sent:
        reason = f"{failed} of {summary.sent} requests failed"
    elif plan.arrivals is not None and completed < KEPT_UP * came:
        reason = f"{came:.3g} requests/s came, {completed:.3g} were completed"
    elif plan.users is not None and gain < LEAST_GAIN:
        reason = f"{USERS_FACTOR} times the users bring {gain:.2f} times the tokens"
    return Step(level, summary, completed, reason, is_good)


def rates_of(outcomes: list[Outcome]) -> tuple[float, float]:
    """Requests a second that came and that were completed; of conversations the first turns count."""
    first = [o for o in outcomes if o.tag in {"", "turn 1"}]
    return _rate([o.due_s for o in first]), _rate([o.end_s for o in first if o.failure is None])


def _rate(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    span = max(times) - min(times)
    return (len(times) - 1) / span if span > 0 else math.inf
