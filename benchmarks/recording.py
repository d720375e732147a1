"""What recording costs: blocks of steps with it and without it in turn, in one engine.

    python -m benchmarks.recording MODEL.gguf [--rows 16] [--seconds 50]

Recorded are the cost model's sums and its learning (`StepMeter`), the timelines (`Batch.time`,
`StepTime.book`, `Together.book`) and the latencies of requests (`RequestClock`). The real core, text side and
event encoder run in one thread. Of each two blocks that follow each other one records and the other does not,
in an order drawn anew for every pair: whatever the machine does besides meets both alike, and hundreds of
pairs make an interval of a percent or less. A block is as long as the cost model holds repeated steps before
it books them, so each has one booking; the first step after a switch is booked by itself and left out. So are
steps that took more than half as long again as the median (another process had the core); how many is told.
At last the recording calls are timed by themselves.
"""

import argparse
import math
import random
import statistics
import time
from dataclasses import replace
from typing import Any

from benchmarks.overhead import SAMPLING, Bench
from headrace.engine.cost.meter import MOST_HELD
from headrace.engine.process import ipc
from headrace.host.sched.batch import Batch
from headrace.host.timeline.times import StepTime, Together
from headrace.serve.metrics import RequestClock

PARTS: tuple[tuple[Any, str], ...] = (
    (Batch, "time"),
    (StepTime, "book"),
    (Together, "book"),
    (RequestClock, "see"),
)
HICCUP = 1.5
BLOCK = MOST_HELD
"""Steps: what `StepMeter` holds is booked once in each."""
TOKENS = 1800
TIMED_STEPS = 200

Pair = tuple[list[float], list[float]]
"""Seconds of the steps of a block with recording, and of one without."""


class Plain(Bench):
    """The engine of `benchmarks.overhead` without its stopwatch, whose recording can be switched."""

    def _instrument(self) -> None:
        self.meter = self.core.meter
        if self.meter is None:
            raise RuntimeError("this engine has no meter: there is nothing to compare")
        self._real = {part: getattr(*part) for part in PARTS}
        self.step, self.encode, self.decode = self.core.step, ipc.encode, ipc.decode
        self.read, self.tell = self.wire.on_event, self._tell

    def record(self, is_on: bool) -> None:
        """Switch everything that is recorded."""
        self.core.meter = self.meter if is_on else None
        silent = {"time": lambda *_: _Silent, "book": lambda *_: None, "see": lambda *_: None}
        for owner, name in PARTS:
            setattr(owner, name, self._real[owner, name] if is_on else silent[name])

    def seconds(self) -> float:
        """Of one step with all that follows it."""
        began = time.perf_counter()
        self.one()
        return time.perf_counter() - began

    def fill(self, rows: int) -> None:
        """As many requests as there are rows; the steps until all decode."""
        params = replace(SAMPLING["greedy"], max_tokens=TOKENS)
        for number in range(rows):
            self.submit(number, params)
        while self.core.scheduler.stats().waiting:
            self.one()
        for _ in range(20):
            self.one()


class _Silent:
    """Stands for a `StepTime` that books nothing."""

    @staticmethod
    def book(*_: Any) -> None:
        """Book nothing."""


def pairs(bench: Plain, rows: int, seconds: float) -> list[Pair]:
    """Pairs of blocks that follow each other."""
    rng, found, end = random.Random(1), list[Pair](), time.perf_counter() + seconds
    while time.perf_counter() < end:
        bench.record(True)
        bench.fill(rows)
        for _ in range((TOKENS - 100) // (2 * BLOCK + 2)):
            took: dict[bool, list[float]] = {}
            for is_on in rng.sample((True, False), 2):
                bench.record(is_on)
                bench.one()
                took[is_on] = [bench.seconds() for _ in range(BLOCK)]
            found.append((took[True], took[False]))
            if time.perf_counter() > end:
                break
        bench.record(True)
        while bench.core.has_work and time.perf_counter() < end:
            bench.one()
    return found


def told(found: list[Pair]) -> str:
    """The share that recording adds, with its 95 % interval."""
    steps = [seconds for pair in found for block in pair for seconds in block]
    most = HICCUP * statistics.median(steps)
    kept = [[[s for s in block if s <= most] for block in pair] for pair in found]
    means = [[statistics.fmean(block) for block in pair] for pair in kept if all(pair)]
    without = statistics.fmean(b for _, b in means)
    more = [a - b for a, b in means]
    middle = statistics.fmean(more) / without
    half = 1.96 * statistics.stdev(more) / math.sqrt(len(more)) / without
    return (
        f"{len(means)} pairs of {BLOCK} steps ({sum(s > most for s in steps)} steps left out), "
        f"{1e3 * without:.3f} ms a step without; "
        f"recording adds {middle:.2%} ({middle - half:.2%} to {middle + half:.2%})"
    )


def direct(bench: Plain, rows: int) -> str:
    """Microseconds of the recording calls of a step, the stopwatch's own time included."""
    spent = dict.fromkeys(("StepMeter.see", *(f"{owner.__name__}.{name}" for owner, name in PARTS)), 0.0)

    def watched(label: str, call: Any) -> Any:
        def run(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                spent[label] += time.perf_counter() - began

        return run

    bench.record(True)
    if not bench.core.has_work:
        bench.fill(rows)
    bench.meter.see = watched("StepMeter.see", bench.meter.see)  # type: ignore[union-attr, method-assign]
    for owner, name in PARTS:
        setattr(owner, name, watched(f"{owner.__name__}.{name}", getattr(owner, name)))
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        bench.one()
    whole = (time.perf_counter() - began) / TIMED_STEPS
    each = {name: seconds / TIMED_STEPS for name, seconds in spent.items()}
    total = sum(each.values())
    listed = ", ".join(f"{name} {1e6 * seconds:.1f}" for name, seconds in each.items())
    return (
        f"microseconds a step: {listed}; together {1e6 * total:.1f} of {1e6 * whole:.0f}, {total / whole:.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=50.0)
    args = parser.parse_args()
    bench = Plain(args.model, "auto", args.rows, None)
    print(f"{args.rows} rows: {told(pairs(bench, args.rows, args.seconds))}", flush=True)
    print(direct(bench, args.rows))
    bench.frontend.close()


if __name__ == "__main__":
    main()
