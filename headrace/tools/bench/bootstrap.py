"""Intervals of ratios of pairs: the percentile bootstrap, widened for few pairs."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import RequestError

LEAST_PAIRS = 5
"""With four pairs that all agree, chance alone does as much in one of eight."""
RESAMPLES = 10_000
T_975 = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110)
"""97.5 % points of Student's t with 4, 5, ... degrees of freedom; beyond: 1.96 + 2.5 / degrees."""
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The geometric mean of ratios of pairs and its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.low <= 1.0 <= self.high

    def verdict(self) -> str:
        """In words; a ratio above 1 means that the second of the pair is better."""
        if not self.is_shown:
            return NO_DIFFERENCE
        return f"B is {'better' if self.ratio > 1 else 'worse'} by {abs(self.ratio - 1):.1%}"


def interval(ratios: Sequence[float], seed: int = 0) -> RatioInterval:
    """The interval of the geometric mean.

    Expanded percentiles (Hesterberg 2015, arXiv:1411.5279): plain ones are too narrow for few pairs by the
    factor of the normal to Student's t and of n to n - 1.

    Raises:
        RequestError: fewer than LEAST_PAIRS pairs, or a ratio that is not above 0.
    """
    count = len(ratios)
    if count < LEAST_PAIRS:
        raise RequestError(
            f"{count} pairs cannot show a difference; at least {LEAST_PAIRS} are needed", param="pairs"
        )
    if not all(r > 0 and math.isfinite(r) for r in ratios):
        raise RequestError(f"ratios must be above 0 and finite, got {list(ratios)}")
    logs = [math.log(r) for r in ratios]
    rng = random.Random(seed)
    means = sorted(math.fsum(rng.choices(logs, k=count)) / count for _ in range(RESAMPLES))
    degrees = count - 1
    t = T_975[degrees - 4] if degrees - 4 < len(T_975) else 1.96 + 2.5 / degrees
    tail = statistics.NormalDist().cdf(-t * math.sqrt(count / degrees))
    at = max(0, math.floor(tail * RESAMPLES))
    middle = math.fsum(logs) / count
    return RatioInterval(math.exp(middle), math.exp(means[at]), math.exp(means[-1 - at]), count)
