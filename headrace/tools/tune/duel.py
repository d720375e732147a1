"""Two settings against each other: from the ratios of pairs so far, is the second better?

After every pair the interval of the mean logarithm is looked at. Looking often finds differences that are
not there more often than one look would, so the confidence is high, and what a search ends with is compared
with the defaults once more, in pairs of its own.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.base.errors import RequestError


class Verdict(StrEnum):
    """What is known."""

    OPEN = "open"
    """More pairs may tell."""
    BETTER = "better"
    WORSE = "worse"
    SAME = "no gain shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a difference counts.

    Raises:
        RequestError: a number is out of range.
    """

    least_pairs: int = 5
    most_pairs: int = 30
    margin: float = 0.02
    """A smaller gain is not worth another setting."""
    confidence: float = 0.995

    def __post_init__(self) -> None:
        """Refuse rules that decide nothing."""
        if not 3 <= self.least_pairs <= self.most_pairs:
            raise RequestError(
                f"pairs must be 3 <= least <= most, got {self.least_pairs} and {self.most_pairs}",
                param="pairs",
            )
        if not 0 <= self.margin < 1 or not 0.5 < self.confidence < 1:
            raise RequestError(f"margin {self.margin} or confidence {self.confidence} is out of range")


@dataclass(frozen=True, slots=True)
class Gain:
    """The geometric mean of the ratios and its interval; above 1: the second is better."""

    ratio: float
    low: float
    high: float


def gain(ratios: Sequence[float], confidence: float) -> Gain:
    """From at least two ratios above 0, by Student's t on their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    half = student(confidence, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Gain(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def student(confidence: float, degrees: int) -> float:
    """The two-sided point of Student's t: exact for 1 and 2 degrees, else Hill's expansion (CACM 396, 1970).

    Its error is below 0.2 % from 3 degrees on, for confidences up to 0.999.
    """
    tail = 1.0 - confidence
    if degrees == 1:
        return 1.0 / math.tan(tail * math.pi / 2)
    if degrees == 2:
        return math.sqrt(2.0 / (tail * (2.0 - tail)) - 2.0)
    n = float(degrees)
    a = 1.0 / (n - 0.5)
    b = 48.0 / (a * a)
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * n
    y = (d * tail) ** (2.0 / n)
    if y > 0.05 + a:
        x = statistics.NormalDist().inv_cdf(tail / 2)
        y = x * x
        if degrees < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        inner = 1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)
        y = (inner * y - 1.0) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)


def judge(ratios: Sequence[float], rules: Rules) -> Verdict:
    """What the pairs so far say."""
    if len(ratios) < rules.least_pairs:
        return Verdict.OPEN
    found = gain(ratios, rules.confidence)
    if found.low > 1.0 and found.ratio >= 1.0 + rules.margin:
        return Verdict.BETTER
    if found.high < 1.0:
        return Verdict.WORSE
    is_small = found.high < 1.0 + rules.margin
    return Verdict.SAME if is_small or len(ratios) >= rules.most_pairs else Verdict.OPEN
