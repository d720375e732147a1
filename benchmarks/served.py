"""Servers under load: Headrace and its peers in turn, with the same client."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.figures import percentile
from benchmarks.limits import Others, cpu_s, peak_rss_mib
from benchmarks.peers.servers import Server
from benchmarks.store import Store
from benchmarks.workloads import WORKLOADS, Load, Target, warm_up

Note = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """A figure of a workload: unit, and whether a larger value is better."""

    name: str
    unit: str
    higher: bool


OUT = Figure("output", "tok/s", higher=True)
TTFT = Figure("TTFT p50", "ms", higher=False)
FIGURES: dict[str, tuple[Figure, ...]] = {
    "single": (Figure("stream", "tok/s", higher=True), TTFT),
    "chat16": (OUT, TTFT, Figure("gap p99", "ms", higher=False)),
    "shared_prefix": (OUT, TTFT),
    "multiturn": (OUT, Figure("TTFT turn 5", "ms", higher=False)),
    "interference": (
        Figure("gap p99 in window", "ms", higher=False),
        Figure("output in window", "tok/s", higher=True),
        Figure("long TTFT p50", "ms", higher=False),
        Figure("long TTFT max", "ms", higher=False),
    ),
}
"""Figures of the table, the chief one first."""


@dataclass
class Plan:
    """What is run: the first server is ours."""

    servers: list[Server]
    workloads: Sequence[str]
    pairs: int
    scale: float = 1.0
    note: Note = print
    failed: set[tuple[str, str]] = field(default_factory=set)
    """(workload, peer) that failed: left out from then on, and said."""


def summarize(workload: str, load: Load) -> dict[str, float]:
    """Figures of one repetition.

    Raises:
        RuntimeError: requests failed.
    """
    failed = [a.error for a in load.answers if a.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(load.answers)} requests failed: {failed[0]}")
    answers, ms = load.answers, 1000.0
    ttft, gaps = [a.ttft * ms for a in answers], [g * ms for a in answers for g in a.gaps()]
    found = {
        "output": sum(a.output_tokens for a in answers) / load.seconds,
        "stream": statistics.median(1 / a.tpot for a in answers if a.output_tokens > 1),
        "TTFT p50": percentile(ttft, 0.5),
        "TTFT p99": percentile(ttft, 0.99),
        "gap p50": percentile(gaps, 0.5),
        "gap p99": percentile(gaps, 0.99),
        "requests": float(len(answers)),
        "prompt tokens": float(sum(a.prompt_tokens for a in answers)),
        "seconds": load.seconds,
    }
    if workload == "multiturn":
        for turn in sorted({a.tag for a in answers}):
            found[f"TTFT {turn.replace('turn', 'turn ')}"] = percentile(
                [a.ttft * ms for a in load.of(turn)], 0.5
            )
    if load.window:
        found |= _window(load, load.window)
    return found


def _window(load: Load, window: tuple[float, float]) -> dict[str, float]:
    inside = [g * 1000 for a in load.of("decode") for g in a.gaps(window)]
    before = [g * 1000 for a in load.of("decode") for g in a.gaps((0.0, window[0]))]
    long = [a.ttft * 1000 for a in load.of("long")]
    # a window without a single gap that ends in it: the decoders stood still for all of it
    stood = [(window[1] - window[0]) * 1000]
    return {
        "gap p50 in window": percentile(inside or stood, 0.5),
        "gap p99 in window": percentile(inside or stood, 0.99),
        "gap p99 before": percentile(before, 0.99) if before else 0.0,
        "output in window": len(inside) / (window[1] - window[0]),
        "window seconds": window[1] - window[0],
        "long TTFT p50": percentile(long, 0.5),
        "long TTFT max": max(long),
    }


def measure(store: Store, model: str, plan: Plan) -> None:
    """All workloads, `pairs` repetitions each; what the file has already is left out."""
    for server in plan.servers:
        asyncio.run(warm_up(server.port))
    for workload in plan.workloads:
        for pair in range(plan.pairs):
            # the order turns, so that no server always follows the same one
            order = plan.servers[pair % len(plan.servers) :] + plan.servers[: pair % len(plan.servers)]
            for server in order:
                _one(store, model, workload, pair, server, plan)


def _one(store: Store, model: str, workload: str, pair: int, server: Server, plan: Plan) -> None:
    keys = {"part": "served", "model": model, "cell": workload, "pair": pair, "who": server.label}
    if store.has(**keys) or (workload, server.label) in plan.failed:
        return
    pids = server.pids
    others, used = Others(pids), cpu_s(pids)
    try:
        load = asyncio.run(WORKLOADS[workload](Target(server.port, 1000 + pair, plan.scale)))
        found = summarize(workload, load)
    except RuntimeError as error:
        plan.failed.add((workload, server.label))
        plan.note(f"{model} {workload} {server.label} FAILED: {error}")
        return
    row = {k: round(v, 3) for k, v in found.items()}
    row["server cores"] = round((cpu_s(pids) - used) / load.seconds, 2)
    row["other cores"] = others.cores(load.seconds)
    row["peak RSS MiB"] = round(peak_rss_mib(pids))
    store.add({**keys, **row})
    chief = FIGURES[workload][0]
    plan.note(
        f"{model} {workload} pair {pair} {server.label}: {chief.name} {found[chief.name]:.1f} {chief.unit}, "
        f"{load.seconds:.0f} s, others {row['other cores']:.2f} cores"
    )
