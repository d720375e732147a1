"""Two servers against each other: the same requests to both, pair by pair, in turn, with intervals.

A machine that drifts slows both halves of a pair alike, so ratios are taken within pairs. The order within a
pair turns from pair to pair.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.base.errors import RequestError
from headrace.tools.bench.ask import Wish
from headrace.tools.bench.bootstrap import LEAST_PAIRS, RatioInterval, interval
from headrace.tools.bench.drive import OnDone
from headrace.tools.bench.run import Plan, measure
from headrace.tools.bench.summary import Summary, summarize
from headrace.tools.bench.wire import Client

MAX_PAIRS = 1000


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a load that is compared."""

    title: str
    value: Callable[[Summary], float | None]
    is_more_better: bool = False


def _latency(name: str, share: str) -> Callable[[Summary], float | None]:
    def value(summary: Summary) -> float | None:
        found = summary.latencies.get(name)
        return None if found is None else getattr(found, share) * 1e3

    return value


FIGURES = (
    Figure("output (tok/s)", lambda s: s.rates.output_tokens, is_more_better=True),
    Figure("requests/s", lambda s: s.rates.requests, is_more_better=True),
    Figure("goodput (requests/s)", lambda s: s.rates.good_requests, is_more_better=True),
    Figure("TTFT p50 (ms)", _latency("ttft", "p50")),
    Figure("TTFT p99 (ms)", _latency("ttft", "p99")),
    Figure("TPOT p50 (ms)", _latency("tpot", "p50")),
    Figure("ITL p99 (ms)", _latency("itl", "p99")),
    Figure("E2EL p50 (ms)", _latency("e2el", "p50")),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure over all pairs; the ratio is made so that more than 1 means that B is better."""

    title: str
    a: float
    """Median."""
    b: float
    interval: RatioInterval


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures, and the summaries they came from, pair by pair."""

    figures: tuple[Compared, ...]
    pairs: tuple[tuple[Summary, Summary], ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two servers."""

    client: Client
    wish: Wish


def check_pairs(count: int) -> None:
    """Refuse too few pairs before anything is measured.

    Raises:
        RequestError: the count is out of range.
    """
    if not LEAST_PAIRS <= count <= MAX_PAIRS:
        raise RequestError(
            f"--pairs must be in [{LEAST_PAIRS}, {MAX_PAIRS}], got {count}: fewer have no useful interval",
            param="pairs",
        )


OnHalf = Callable[[int, str], None]


async def compare(
    a: Side, b: Side, plan: Plan, num_pairs: int, on_half: OnHalf | None = None, on_done: OnDone | None = None
) -> Comparison:
    """Run the pairs; pair i has the texts and times of the plan's seed + i on both sides.

    Raises:
        RequestError: too few pairs for an interval, or a side that completes nothing.
    """
    check_pairs(num_pairs)
    pairs: list[tuple[Summary, Summary]] = []
    for number in range(num_pairs):
        seeded = plan.seeded(plan.dataset.seed + number)
        found: dict[str, Summary] = {}
        for name in "AB" if number % 2 == 0 else "BA":
            if on_half is not None:
                on_half(number, name)
            side = a if name == "A" else b
            summary = summarize(await measure(side.client, side.wish, seeded, on_done), plan.slo)
            if not summary.completed:
                kinds = ", ".join(f"{count} {kind}" for kind, count in summary.failures.items())
                raise RequestError(f"{name} completed none of {summary.sent} requests ({kinds})")
            found[name] = summary
        pairs.append((found["A"], found["B"]))
    return Comparison(tuple(figures_of(pairs)), tuple(pairs))


def figures_of(pairs: Sequence[tuple[Summary, Summary]]) -> list[Compared]:
    """Each figure that both sides have, above 0, in every pair."""
    rows: list[Compared] = []
    for figure in FIGURES:
        values = [(figure.value(a), figure.value(b)) for a, b in pairs]
        known = [(a, b) for a, b in values if a is not None and b is not None and a > 0 and b > 0]
        if len(known) < len(pairs):
            continue
        ratios = [b / a if figure.is_more_better else a / b for a, b in known]
        rows.append(
            Compared(
                figure.title,
                statistics.median(a for a, _ in known),
                statistics.median(b for _, b in known),
                interval(ratios),
            )
        )
    return rows


def failures_of(comparison: Comparison) -> Mapping[str, int]:
    """Failed requests of each side, over all pairs."""
    sides = {"A": 0, "B": 0}
    for a, b in comparison.pairs:
        sides["A"] += sum(a.failures.values())
        sides["B"] += sum(b.failures.values())
    return sides
