"""Headrace against llama-server in one run: interleaved repetitions, medians, ratios.

    python benchmarks/versus.py MODEL.gguf --llama-server PATH [--workloads single,chat16] [--repetitions 5]

Both servers stay up; each repetition runs the workload on one, then on the other, in turn, with prompts of
its own, so a machine that drifts slows both alike. The ratio is the median of the ratios of the pairs.
"""

import argparse
import asyncio
import json
import statistics
from pathlib import Path

import servers
from workloads import WORKLOADS, Result

FIGURE = {
    "single": ("decode tok/s of a stream", lambda a, _: statistics.median(1 / x.tpot for x in a)),
    "depth": (
        "decode tok/s of a stream at depth 2,048",
        lambda a, _: statistics.median(1 / x.tpot for x in a),
    ),
    "prefill": (
        "prefill tok/s",
        lambda a, _: statistics.median((x.prompt_tokens - x.cached_tokens) / x.ttft for x in a),
    ),
    "chat16": ("output tok/s of 16 users", lambda a, s: sum(x.output_tokens for x in a) / s),
    "shared_prefix": (
        "output tok/s of 16 users, shared prefix",
        lambda a, s: sum(x.output_tokens for x in a) / s,
    ),
}


def figure(name: str, result: Result) -> float:
    answers, seconds = result
    failed = [a.error for a in answers if a.error]
    if failed:
        raise RuntimeError(f"{name}: {len(failed)} of {len(answers)} requests failed: {failed[0]}")
    return FIGURE[name][1](answers, seconds)


def measure(name: str, pair: list[servers.Server], repetitions: int) -> dict:
    """Figures of both servers per repetition, in turn; the first repetition warms up and does not count."""
    rows: list[dict[str, float]] = []
    first_tokens: dict[str, list[float]] = {s.label: [] for s in pair}
    for repetition in range(repetitions + 1):
        row = {}
        for server in pair if repetition % 2 else reversed(pair):
            result = asyncio.run(WORKLOADS[name]("127.0.0.1", server.port, "default", 1000 + repetition))
            row[server.label] = figure(name, result)
            first_tokens[server.label] += [a.ttft for a in result[0]] if repetition else []
        if repetition:
            rows.append(row)
            print(name, repetition, {k: round(v, 1) for k, v in row.items()}, flush=True)
    ours, theirs = pair[0].label, pair[1].label
    return {
        "workload": name,
        "figure": FIGURE[name][0],
        ours: statistics.median(r[ours] for r in rows),
        theirs: statistics.median(r[theirs] for r in rows),
        "ratio": statistics.median(r[ours] / r[theirs] for r in rows),
        "ratios": [round(r[ours] / r[theirs], 3) for r in rows],
        "ttft_p50_ms": {k: round(1000 * statistics.median(v), 1) for k, v in first_tokens.items()},
    }


def table(results: list[dict], ours: str, theirs: str) -> str:
    lines = [f"| workload | {ours} | {theirs} | ratio | range |", "|---|---|---|---|---|"]
    for r in results:
        low, high = min(r["ratios"]), max(r["ratios"])
        values = f"{r[ours]:.1f} | {r[theirs]:.1f} | **{r['ratio']:.2f}** | {low:.2f} to {high:.2f}"
        lines.append(f"| {r['figure']} | {values} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", default="llama-server")
    parser.add_argument("--headrace", default="headrace")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    pair = [servers.headrace(args.model, args.headrace)]
    try:
        pair.append(servers.llama_cpp(args.model, args.llama_server))
        results = [measure(name, pair, args.repetitions) for name in args.workloads.split(",")]
    finally:
        for server in pair:
            server.stop()
    print(table(results, pair[0].label, pair[1].label))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
