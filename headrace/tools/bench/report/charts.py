"""Charts as values: what is drawn, not how."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.tools.bench.ask import Outcome
from headrace.tools.bench.compare import Comparison
from headrace.tools.bench.drive import Load
from headrace.tools.bench.ramp import Ramp
from headrace.tools.bench.summary import latency_of

MAX_POINTS = 400
MAX_BARS = 300
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order; or, with `is_segments`, pairs of points with a line between each two."""

    name: str
    points: tuple[tuple[float, float], ...]
    is_segments: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


def of_load(load: Load) -> list[Chart]:
    """Distributions of latencies, requests over time, tokens a second over time."""
    done = [o for o in load.outcomes if o.failure is None]
    charts = [_requests(load)]
    if done:
        charts = [_distribution(name, done) for name in TITLES] + charts + [_rate(load, done)]
    return [chart for chart in charts if any(series.points for series in chart.series)]


def of_ramp(ramp: Ramp) -> list[Chart]:
    """Tokens a second and TTFT over the load."""
    rate = tuple((s.level, s.summary.rates.output_tokens) for s in ramp.steps)
    ttft = [(s.level, s.summary.latencies["ttft"]) for s in ramp.steps if "ttft" in s.summary.latencies]
    shares = [Series(p, tuple((level, getattr(t, p) * 1e3) for level, t in ttft)) for p in ("p50", "p99")]
    return [
        Chart("Output over load", ramp.unit, "tokens/s", (Series("output", rate),)),
        Chart("TTFT over load", ramp.unit, "ms", tuple(shares)),
    ]


def of_comparison(comparison: Comparison) -> list[Chart]:
    """Intervals of the ratios, a line each; 1 is no difference."""
    rows = comparison.figures
    one = Series("no difference", ((1.0, 0.0), (1.0, len(rows) + 0.5)))
    bars = [
        Series(row.title, ((row.interval.low, at), (row.interval.high, at)), is_segments=True)
        for at, row in enumerate(rows, 1)
    ]
    return [Chart("B against A: above 1, B is better", "ratio, 95 % interval", "figure", (one, *bars))]


def _distribution(name: str, done: Sequence[Outcome]) -> Chart:
    latencies = [latency_of(outcome) for outcome in done]
    if name == "itl":
        values = [gap for latency in latencies for gap in latency.itls_s]
    else:
        values = [getattr(latency, f"{name}_s") for latency in latencies]
    ordered = sorted(value * 1e3 for value in values if value is not None)
    every = max(1, len(ordered) // MAX_POINTS)
    kept = [i for i in range(len(ordered)) if i % every == 0 or i == len(ordered) - 1]
    points = tuple((ordered[i], 100 * (i + 1) / len(ordered)) for i in kept)
    return Chart(f"{TITLES[name]}, cumulative", "ms", "% of values", (Series(TITLES[name], points),))


def _requests(load: Load) -> Chart:
    """A line per request: from due to the first token, from there to the end; failed ones apart."""
    waits: list[tuple[float, float]] = []
    answers: list[tuple[float, float]] = []
    failed: list[tuple[float, float]] = []
    for row, outcome in enumerate(load.outcomes[:MAX_BARS]):
        due, end = outcome.due_s - load.start_s, outcome.end_s - load.start_s
        if outcome.failure is not None:
            failed += [(due, row), (end, row)]
            continue
        first = outcome.stamps_s[0] - load.start_s
        waits += [(due, row), (first, row)]
        answers += [(first, row), (end, row)]
    series = [("to the first token", waits), ("answer", answers), ("failed", failed)]
    made = tuple(Series(name, tuple(points), is_segments=True) for name, points in series if points)
    return Chart("Requests over time", "s", "request", made)


def _rate(load: Load, done: Sequence[Outcome]) -> Chart:
    """Output tokens a second in 50 equal parts of the load; a request's tokens spread over its events."""
    width = max(load.seconds / 50, 1e-3)
    tokens: Counter[int] = Counter()
    for outcome in done:
        each = outcome.counts.output / len(outcome.stamps_s)
        for stamp in outcome.stamps_s:
            tokens[int((stamp - load.start_s) / width)] += each  # type: ignore[assignment]
    points = tuple(((part + 0.5) * width, tokens[part] / width) for part in range(max(tokens) + 1))
    return Chart("Output over time", "s", "tokens/s", (Series("output", points),))
