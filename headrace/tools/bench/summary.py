"""From outcomes to figures. Failed requests are counted by kind and are in no figure of latency.

Latencies count from when a request was due, so that a queue in the client or before a slow server shows in an
open loop; `client_lag` tells how much of that is the client's own.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.base.metrics import Latency, Slo, goodput, percentile, throughput
from headrace.tools.bench.ask import Outcome
from headrace.tools.bench.drive import Load

LATE_S = 0.01
"""A client whose requests go out later than this, at the 99th percentile, is warned about."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution, in seconds."""

    count: int
    mean: float
    std: float
    """Of the population."""
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over the whole load; tokens of failed requests do not count."""

    requests: float
    output_tokens: float
    total_tokens: float
    """Prompt and output."""
    good_requests: float | None
    """Goodput: requests within the objectives; None without objectives."""
    good_share: float | None
    """Good requests over all that were sent, failed ones too."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sums over completed requests."""

    prompt: int
    output: int
    cached: int
    per_event: float | None
    """Output tokens for each event of the streams: above 1, gaps between events span several tokens."""
    are_reported: bool
    """By the server, for every completed request."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one load."""

    seconds: float
    sent: int
    completed: int
    failures: Mapping[str, int]
    """By kind."""
    latencies: Mapping[str, Spread]
    """`ttft`, `tpot`, `itl`, `e2el`, `client_lag`, `loop_lag`: those that there are values of."""
    tokens: Tokens
    rates: Rates
    warnings: tuple[str, ...]


def latency_of(outcome: Outcome) -> Latency:
    """A completed request's latencies: from when it was due to its events with text."""
    return Latency.of(outcome.due_s, outcome.stamps_s, outcome.counts.output)


def spread(values: Sequence[float]) -> Spread:
    """The distribution of at least one value."""
    ordered = sorted(values)
    shares = [percentile(ordered, percent) for percent in (50, 90, 95, 99)]
    return Spread(
        len(ordered),
        statistics.fmean(ordered),
        statistics.pstdev(ordered),
        ordered[0],
        *shares,
        max=ordered[-1],
    )


def summarize(load: Load, slo: Slo | None = None) -> Summary:
    """The figures of a load; goodput where there is an objective."""
    done = [o for o in load.outcomes if o.failure is None]
    failures = Counter(str(o.failure) for o in load.outcomes if o.failure is not None)
    found = [latency_of(o) for o in done]
    values = {
        "ttft": [latency.ttft_s for latency in found],
        "tpot": [latency.tpot_s for latency in found if latency.tpot_s is not None],
        "itl": [gap for latency in found for gap in latency.itls_s],
        "e2el": [latency.e2el_s for latency in found],
        "client_lag": [o.sent_s - o.due_s for o in load.outcomes],
        "loop_lag": load.loop_lags_s,
    }
    latencies = {name: spread(seconds) for name, seconds in values.items() if seconds}
    tokens, sent = _tokens(done), len(load.outcomes)
    rates = Rates(
        requests=throughput(len(done), load.seconds),
        output_tokens=throughput(tokens.output, load.seconds),
        total_tokens=throughput(tokens.prompt + tokens.output, load.seconds),
        good_requests=goodput(found, slo, load.seconds) if slo else None,
        good_share=sum(map(slo.is_met, found)) / sent if slo and sent else None,
    )
    warnings = _warnings(tokens, latencies, failures, len(load.outcomes))
    if load.is_cut:
        warnings.insert(0, "Interrupted: requests that were under way are not among these.")
    return Summary(
        seconds=load.seconds,
        sent=len(load.outcomes),
        completed=len(done),
        failures=dict(sorted(failures.items())),
        latencies=latencies,
        tokens=tokens,
        rates=rates,
        warnings=tuple(warnings),
    )


def _tokens(done: Sequence[Outcome]) -> Tokens:
    output, events = sum(o.counts.output for o in done), sum(len(o.stamps_s) for o in done)
    return Tokens(
        prompt=sum(o.counts.prompt for o in done),
        output=output,
        cached=sum(o.counts.cached for o in done),
        per_event=output / events if events else None,
        are_reported=all(o.counts.is_reported for o in done),
    )


def _warnings(
    tokens: Tokens, latencies: Mapping[str, Spread], failures: Mapping[str, int], sent: int
) -> list[str]:
    found: list[str] = []
    failed = sum(failures.values())
    if failed:
        found.append(f"{failed} of {sent} requests failed; no latency and no rate counts them.")
    for name, what in (("client_lag", "sent"), ("loop_lag", "served by this client's event loop")):
        late = latencies.get(name)
        if late is not None and late.p99 > LATE_S:
            found.append(
                f"1 % of requests were {what} {late.p99 * 1e3:.0f} ms late or more: the client is a "
                "bottleneck, and the figures hold its delay. Give it a core of its own, or lower the load."
            )
    if not tokens.are_reported:
        found.append("The server reports no usage: events are counted as tokens.")
    elif tokens.per_event is not None and tokens.per_event > 1.05:
        found.append(
            f"An event carries {tokens.per_event:.2f} tokens on average: ITL is the gap between events, "
            "TPOT the time per token."
        )
    return found
