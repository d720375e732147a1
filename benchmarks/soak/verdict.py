"""What must hold after a soak, as rows of a table."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from benchmarks.soak.run import Found
from benchmarks.soak.watch import Life
from benchmarks.soak.wire import Outcome

RED_S = 1.0
RECOVERY_S = 3.0
GROWTH = 0.02
HEALTH_S = 1.0
LEAST_WINDOW_S, MOST_WINDOW_S = 5.0, 60.0
"""Seconds over which memory is averaged."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    limit: str
    found: str
    holds: bool


def judge(found: Found) -> list[Check]:
    """All checks."""
    return [*_answers(found), *_kills(found), *_health(found), *_memory(found), *_rest(found)]


def _answers(found: Found) -> Iterable[Check]:
    wrong = [o for o in found.outcomes if o.wrong]
    yield Check("answers that end as they must", "all", _wrong(wrong, found.outcomes), not wrong)
    odd = [o for o in found.outcomes if not o.wrong and o.status >= 500 and not _is_dead_time(found, o)]
    yield Check("5xx outside kills", "none", _told(odd), not odd)
    errors = [o for o in found.outcomes if o.errors]
    late = [o for o in errors if not any(o.start <= k.at <= o.end for k in found.watcher.kills)]
    yield Check("streams ended by an error, not in flight at a kill", "none", _told(late), not late)
    canaries = [o for o in found.outcomes if o.kind == "canary" and o.status == 200]
    same = sum(o.text == found.known for o in canaries)
    holds = same == len(canaries) > 0 and bool(found.known)
    yield Check("equal requests, equal answers", "all", f"{same} of {len(canaries)}", holds)


def _is_dead_time(found: Found, outcome: Outcome) -> bool:
    return any(outcome.start <= k.over and outcome.end >= k.at for k in found.watcher.kills)


def _kills(found: Found) -> Iterable[Check]:
    kills = found.watcher.kills
    if not kills:
        return
    yield Check("kills", str(found.plan.kills), str(len(kills)), len(kills) == found.plan.kills)
    for name, limit, values in (
        ("kill to red /health, s", RED_S, [k.red for k in kills]),
        ("kill to green /health, s", RECOVERY_S, [k.green for k in kills]),
        ("kill to a new first token, s", RECOVERY_S, [k.token for k in kills]),
    ):
        yield Check(name, f"< {limit:g}", _spread(values), max(values) < limit)


def _health(found: Found) -> Iterable[Check]:
    polls, kills = found.watcher.polls, found.watcher.kills
    wrong = [
        p
        for p in polls
        if p.status != 200 and not any(p.start <= k.at + k.green and p.end >= k.at for k in kills)
    ]
    told = f"{len(wrong)} of {len(polls)}" + (f", {Counter(p.status for p in wrong)}" if wrong else "")
    yield Check("/health not 200 while alive", "none", told, not wrong)
    took = [p.end - p.start for p in polls]
    yield Check("/health answers within, s", f"< {HEALTH_S:g}", _spread(took), max(took) < HEALTH_S)


def _memory(found: Found) -> Iterable[Check]:
    lives = [found.watcher.lives[found.watcher.pid], list(found.watcher.lives.values())[-1]]
    for life in lives:
        grown = growth(life, found.plan.settle_s, found.end)
        told = f"{grown:+.2%} of {life.samples[-1][1]:.0f} MiB" if grown is not None else "too short a life"
        limit = f"< {GROWTH:.0%} after {found.plan.settle_s:g} s"
        yield Check(f"growth of the {life.name} process", limit, told, grown is not None and grown < GROWTH)


def growth(life: Life, settle_s: float, end: float) -> float | None:
    """Memory at the end of the load over that after the settling time, less 1; None: too short a life.

    Medians over an eighth of the time between, at most a minute: bodies of 300 KB make the memory of the
    HTTP process swing by a seventh within seconds, and a sample at a trough is no growth.
    """
    rest_s = end - life.start - settle_s
    window_s = min(MOST_WINDOW_S, max(LEAST_WINDOW_S, rest_s / 8))
    first = [m for t, m in life.samples if 0 <= t - life.start - settle_s <= window_s]
    last = [m for t, m in life.samples if 0 <= end - t <= window_s]
    if not (first and last) or rest_s < 2 * window_s:
        return None
    return statistics.median(last) / statistics.median(first) - 1


def _rest(found: Found) -> Iterable[Check]:
    left = {k: v for k, v in found.gauges.items() if k != "kv_blocks_total" and v}
    told = f"{left or 'nothing'} after {found.idle_s:.2f} s"
    yield Check("held after the load", "nothing", told, bool(found.gauges) and not left)
    before, after = found.files
    yield Check(
        "file descriptors of the HTTP process", "as before", f"{before}, {after}", after <= before + 2
    )


def _told(outcomes: list[Outcome]) -> str:
    shown = Counter(f"{o.status} {o.code} {o.kind} {o.path}" for o in outcomes).most_common(3)
    return str(len(outcomes)) + "".join(f"; {n}x {text}" for text, n in shown)


def _wrong(wrong: list[Outcome], outcomes: list[Outcome]) -> str:
    shown = Counter(f"{o.path} ({o.kind}): {o.wrong}" for o in wrong).most_common(6)
    return f"{len(outcomes) - len(wrong)} of {len(outcomes)}" + "".join(f"; {n}x {text}" for text, n in shown)


def _spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.3f}, most {max(values):.3f}"


def counts(found: Found) -> dict[str, int]:
    """Requests by what became of them."""
    made: Counter[str] = Counter()
    for o in found.outcomes:
        if o.wrong:
            name = "wrong"
        elif o.left:
            name = "left"
        elif o.errors:
            name = "ended by an error event"
        else:
            name = f"{o.status}" + (f" {o.code}" if o.code else "")
        made[name] += 1
    return dict(made.most_common())


def table(found: Found, checks: list[Check]) -> str:
    """The report in Markdown."""
    plan = found.plan
    lines = [
        f"{plan.streams} streams, {plan.seconds:g} s, {plan.kills} kills: {len(found.outcomes)} requests",
        "; ".join(f"{n} {name}" for name, n in counts(found).items()),
        "",
        "| check | must be | was | |",
        "|---|---|---|---|",
    ]
    return "\n".join(
        lines + [f"| {c.name} | {c.limit} | {c.found} | {'holds' if c.holds else 'FAILS'} |" for c in checks]
    )


def record(found: Found, checks: list[Check]) -> dict:
    """The report as data; times in seconds from the start."""
    start = found.start
    return {
        "plan": asdict(found.plan),
        "counts": counts(found),
        "checks": [asdict(c) for c in checks],
        "kills": [asdict(k) | {"at": k.at - start} for k in found.watcher.kills],
        "memory_mib": {
            f"{life.name} {pid}": [(round(t - start, 1), round(m, 1)) for t, m in life.samples]
            for pid, life in found.watcher.lives.items()
        },
        "wrong": [asdict(o) for o in found.outcomes if o.wrong][:50],
    }
