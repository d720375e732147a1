"""When requests are due in an open loop: seconds from the start, the same for the same seed."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import RequestError
from headrace.tools.bench.datasets.talk import Talk

PROCESSES = ("poisson", "constant", "bursts")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open loop: requests come whether or not earlier ones are answered.

    Raises:
        RequestError: an unknown process, or numbers out of range.
    """

    rate: float
    """Mean requests a second; infinite: all at once."""
    process: str = "poisson"
    burst_size: int = 8
    """Requests that come together, with `bursts`."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise RequestError(f"--arrivals must be one of {', '.join(PROCESSES)}, got {self.process!r}")
        if not self.rate > 0:
            raise RequestError(f"--rate must be above 0 requests a second, got {self.rate:g}")
        if self.burst_size < 1:
            raise RequestError(f"--burst-size must be at least 1, got {self.burst_size}")

    def times(self, count: int) -> list[float]:
        """When each of `count` requests is due; the first at 0, in order."""
        if math.isinf(self.rate):
            return [0.0] * count
        if self.process == "constant":
            return [i / self.rate for i in range(count)]
        if self.process == "bursts":
            return [i // self.burst_size * self.burst_size / self.rate for i in range(count)]
        rng, at, times = random.Random(self.seed), 0.0, list[float]()
        for _ in range(count):
            times.append(at)
            at += rng.expovariate(self.rate)
        return times


def recorded(talks: Sequence[Talk], speed: float) -> list[float]:
    """A trace's own times, `speed` times as fast, the first at 0.

    Raises:
        RequestError: an entry without a time, times that go back, or a speed not above 0.
    """
    if not speed > 0 or math.isinf(speed):
        raise RequestError(f"--speed must be above 0, got {speed:g}", param="speed")
    times: list[float] = []
    for number, talk in enumerate(talks, 1):
        if talk.at_s is None:
            raise RequestError(f"entry {number} of the trace has no at_s (seconds) and no timestamp (ms)")
        if (times and talk.at_s < times[-1]) or not math.isfinite(talk.at_s):
            raise RequestError(f"entry {number} of the trace comes before the one above it; sort it by time")
        times.append(talk.at_s)
    return [(at - times[0]) / speed for at in times]
