"""Nine planted bottlenecks and a healthy server, each judged several times by `headrace doctor` under load.

Ends with 1 when a cause is not named in nine of ten runs.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.doctor.causes import CAUSES
from benchmarks.doctor.run import Plan, examine, program, table
from benchmarks.store import ROOT

ENOUGH = 0.9


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor", description=__doc__)
    add = parser.add_argument
    add("causes", nargs="*", metavar="CAUSE", help=f"of {', '.join(CAUSES)}; all when none is named")
    add("--runs", type=int, default=10, help="windows of each cause")
    add("--seconds", type=float, default=4.0, help="length of a window")
    add("--headrace", default=program())
    add("--headrace-args", default="", help="more flags of `headrace serve`")
    add("--traces", type=Path, help="folder for what the doctor read in each run")
    add("--out", type=Path, default=ROOT / "results/doctor.json", help="rows of causes not run now are kept")
    args = parser.parse_args(argv)
    for name in args.causes:
        if name not in CAUSES:
            parser.error(f"no cause {name!r}; there are {', '.join(CAUSES)}")
    return args


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit stops the server, a signal would not
    args = parse(sys.argv[1:])
    plan = Plan(
        runs=args.runs,
        seconds=args.seconds,
        program=args.headrace,
        flags=tuple(args.headrace_args.split()),
        traces=args.traces,
    )
    for folder in (args.out.parent, *([args.traces] if args.traces else [])):
        folder.mkdir(parents=True, exist_ok=True)
    rows = json.loads(args.out.read_text()) if args.out.is_file() else []
    for name in args.causes or CAUSES:
        found = examine(CAUSES[name], plan, lambda line: print(line, flush=True))
        rows = [row for row in rows if row["cause"] != name] + found
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows, CAUSES))
    missed = [n for n in CAUSES if not _is_named([row["is_right"] for row in rows if row["cause"] == n])]
    sys.exit(bool(missed))


def _is_named(right: list[bool]) -> bool:
    return sum(right) >= ENOUGH * len(right)


if __name__ == "__main__":
    main()
