"""Load, faults and kills against a live server; ends with 1 when something that must hold does not."""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from benchmarks.peers.servers import headrace
from benchmarks.soak.run import Plan, soak
from benchmarks.soak.verdict import judge, record, table
from benchmarks.store import ROOT


def parse(argv: list[str]) -> argparse.Namespace:
    """The settings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="length of the load")
    add("--streams", type=int, default=200, help="clients that each send one request after the other")
    add("--kills", type=int, default=10, help="how often the engine process is killed")
    add("--seed", type=int, default=0, help="of the requests")
    add(
        "--settle",
        type=float,
        default=60.0,
        help="seconds of a process's life after which its memory is flat",
    )
    add("--model", default="smollm2:135m")
    add("--headrace", default=str(Path(sys.executable).with_name("headrace")))
    add("--headrace-args", default="--kv-cache-memory-bytes 268435456", help="flags of `headrace serve`")
    add("--out", type=Path, default=ROOT / "results/soak.json")
    return parser.parse_args(argv)


def main() -> None:
    """Start the server, run, report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit stops the server, a signal would not
    args = parse(sys.argv[1:])
    plan = Plan(
        seconds=60 * args.minutes,
        streams=args.streams,
        kills=args.kills,
        seed=args.seed,
        settle_s=args.settle,
    )
    server = headrace(args.model, args.headrace, args.headrace_args.split())
    try:
        found = asyncio.run(soak(server, plan))
    finally:
        server.stop()
    checks = judge(found)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record(found, checks), indent=1) + "\n")
    print(table(found, checks))
    sys.exit(not all(c.holds for c in checks))


if __name__ == "__main__":
    main()
