"""How cost grows: a token's time over the depth of its context, a step's time over its batch."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.costs import ModelCost
from benchmarks.figures import CACHED_BYTES, Limits


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a token = `base` + `slope` x tokens of context."""

    base: float
    slope: float


def fit(depths: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line of least squares.

    Raises:
        ValueError: fewer than two different depths.
    """
    if len(set(depths)) < 2 or len(depths) != len(seconds):
        raise ValueError(f"{len(set(depths))} depths and {len(seconds)} times make no line")
    slope, base = statistics.linear_regression(depths, seconds)
    return Line(base, slope)


def least_slope(cost: ModelCost, limits: Limits, deepest: float) -> float:
    """Seconds that reading one more token of context takes at least, at the rate of the deepest step."""
    step = cost.body_bytes + cost.head_bytes + deepest * cost.kv_token_bytes
    return cost.kv_token_bytes / (limits.read_small if step < CACHED_BYTES else limits.read_large)


def step_ms(speeds: Mapping[int, float]) -> dict[int, float]:
    """Milliseconds of a step by its sequences, from tokens a second."""
    return {n: 1e3 * n / speed for n, speed in sorted(speeds.items())}
