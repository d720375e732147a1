"""Figures as JSON and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headrace.tools.bench.compare import Comparison, failures_of
from headrace.tools.bench.drive import Load
from headrace.tools.bench.ramp import Ramp
from headrace.tools.bench.summary import Spread, Summary, latency_of

TITLES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "client_lag": "client lag",
    "loop_lag": "client's event loop",
}
SHARES = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")


def summary_json(summary: Summary) -> dict[str, Any]:
    """The figures; times in milliseconds, rates per second."""
    found = asdict(summary)
    del found["latencies"]
    return found | {f"{name}_ms": _spread_ms(spread) for name, spread in summary.latencies.items()}


def requests_json(load: Load) -> list[dict[str, Any]]:
    """Every request, in the order in which they were due; seconds from the start of the load."""
    rows: list[dict[str, Any]] = []
    for outcome in load.outcomes:
        row: dict[str, Any] = {
            "due_s": outcome.due_s - load.start_s,
            "sent_s": outcome.sent_s - load.start_s,
            "end_s": outcome.end_s - load.start_s,
            "events_s": [stamp - load.start_s for stamp in outcome.stamps_s],
            "prompt_tokens": outcome.counts.prompt,
            "output_tokens": outcome.counts.output,
            "cached_tokens": outcome.counts.cached,
        }
        if outcome.tag:
            row["tag"] = outcome.tag
        if outcome.failure is not None:
            row |= {"failure": str(outcome.failure), "detail": outcome.detail}
        else:
            latency = latency_of(outcome)
            row |= {"ttft_ms": latency.ttft_s * 1e3, "e2el_ms": latency.e2el_s * 1e3}
            row["tpot_ms"] = None if latency.tpot_s is None else latency.tpot_s * 1e3
        rows.append(row)
    return rows


def ramp_json(ramp: Ramp) -> dict[str, Any]:
    """All levels, and the highest that held."""
    sustained = ramp.sustained
    return {
        "unit": ramp.unit,
        "is_saturated": ramp.is_saturated,
        "sustained": None if sustained is None else sustained.level,
        "steps": [
            {
                "level": step.level,
                "completion_rate": step.completion_rate,
                "saturated": step.reason,
                "is_good": step.is_good,
                **summary_json(step.summary),
            }
            for step in ramp.steps
        ],
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Ratios with their intervals and words, then each pair's figures."""
    return {
        "figures": [
            {
                "figure": row.title,
                "a": row.a,
                "b": row.b,
                **asdict(row.interval),
                "verdict": row.interval.verdict(),
            }
            for row in comparison.figures
        ],
        "pairs": [{"a": summary_json(a), "b": summary_json(b)} for a, b in comparison.pairs],
    }


def summary_markdown(summary: Summary) -> str:
    """Two tables and the warnings."""
    rates, tokens = summary.rates, summary.tokens
    failures = ", ".join(f"{count} {kind}" for kind, count in summary.failures.items())
    rows = [
        (
            "requests completed",
            f"{summary.completed} of {summary.sent}" + (f" ({failures})" if failures else ""),
        ),
        ("duration", f"{summary.seconds:.2f} s"),
        ("prompt tokens", f"{tokens.prompt} ({tokens.cached} cached)"),
        ("output tokens", str(tokens.output)),
        ("requests/s", f"{rates.requests:.3f}"),
        ("output tokens/s", f"{rates.output_tokens:.2f}"),
        ("all tokens/s", f"{rates.total_tokens:.2f}"),
    ]
    if rates.good_requests is not None and rates.good_share is not None:
        rows.append(
            ("goodput (requests/s)", f"{rates.good_requests:.3f} ({rates.good_share:.1%} of requests)")
        )
    spreads = [
        (TITLES[name], *(f"{ms:.2f}" for ms in (spread_ms[s] for s in SHARES)))
        for name, spread_ms in ((n, _spread_ms(s)) for n, s in summary.latencies.items())
    ]
    parts = [table(("figure", "value"), rows)]
    if spreads:
        parts.append(table(("ms", *SHARES), spreads))
    parts += [f"- {warning}" for warning in summary.warnings]
    return "\n\n".join(parts) + "\n"


def ramp_markdown(ramp: Ramp) -> str:
    """A table of levels and a sentence."""
    rows: list[tuple[str, ...]] = []
    for step in ramp.steps:
        ttft, tpot = step.summary.latencies.get("ttft"), step.summary.latencies.get("tpot")
        good = step.summary.rates.good_share
        rows.append(
            (
                f"{step.level:.4g}",
                f"{step.completion_rate:.3f}",
                f"{step.summary.rates.output_tokens:.1f}",
                "-" if ttft is None else f"{ttft.p50 * 1e3:.1f} / {ttft.p99 * 1e3:.1f}",
                "-" if tpot is None else f"{tpot.p50 * 1e3:.2f}",
                "-" if good is None else f"{good:.0%}",
                step.reason or "-",
            )
        )
    header = (
        f"load ({ramp.unit})",
        "answered (requests/s)",
        "output (tok/s)",
        "TTFT p50 / p99 (ms)",
        "TPOT p50 (ms)",
        "within the SLO",
        "saturated because",
    )
    return table(header, rows) + "\n\n" + ramp_sentence(ramp) + "\n"


def ramp_sentence(ramp: Ramp) -> str:
    """What the ramp found."""
    held = ramp.sustained
    first = (
        "No level held." if held is None else f"The highest level that held: {held.level:.4g} {ramp.unit}."
    )
    if ramp.is_cut:
        return f"{first} Interrupted: higher levels were not tried."
    if not ramp.is_saturated:
        return f"{first} The server was not saturated: begin higher, or ask more requests at each level."
    return f"{first} Saturated at {ramp.steps[-1].level:.4g} {ramp.unit}: {ramp.steps[-1].reason}."


def comparison_markdown(comparison: Comparison) -> str:
    """Ratios with intervals; a ratio above 1 means that B is better."""
    rows = [
        (
            row.title,
            f"{row.a:.4g}",
            f"{row.b:.4g}",
            f"{row.interval.ratio:.3f}",
            f"{row.interval.low:.3f} to {row.interval.high:.3f}",
            row.interval.verdict(),
        )
        for row in comparison.figures
    ]
    text = table(
        ("figure", "A (median)", "B (median)", "B better by a factor of", "95 % interval", "verdict"), rows
    )
    failed = failures_of(comparison)
    text += f"\n\n{len(comparison.pairs)} pairs; ratios above 1: B is better."
    if any(failed.values()):
        text += f" Failed requests, not in the figures: {failed['A']} of A, {failed['B']} of B."
    return text + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _spread_ms(spread: Spread) -> Mapping[str, float]:
    found = asdict(spread)
    return {name: value if name == "count" else value * 1e3 for name, value in found.items()}
