"""Arithmetic of the benchmarks: medians of ratios, percentiles, shares of a machine's limits."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CACHED_BYTES = 192e6
"""Steps that read less are held against the read rate over 96 MB, others against that over 512 MB."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours against theirs over pairs, made so that more than 1 is better for us."""

    median: float
    low: float
    high: float
    pairs: int


def ratio(ours: Sequence[float], theirs: Sequence[float], *, higher: bool = True) -> Ratio:
    """The median of the pairs' ratios, and their range; `higher`: whether a larger value is better.

    A machine that drifts slows both halves of a pair alike; the ratio of medians would not cancel that.

    Raises:
        ValueError: no pairs, or lists of unequal length.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} of our values and {len(theirs)} of theirs do not make pairs")
    each = [a / b if higher else b / a for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each), len(each))


def best(values: Sequence[float], *, higher: bool = True) -> float:
    """The best of several peers in one repetition."""
    return max(values) if higher else min(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics; `share` in [0, 1].

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True, slots=True)
class Work:
    """What one measured piece of work cannot do without.

    `bytes_read` weights, keys and values, once per step; `int8_ops` operations of products with quantized
    weights, `int16_ops` of attention, `float_ops` of float weights; 2 per multiplication and addition.
    """

    bytes_read: float
    int8_ops: float
    int16_ops: float
    """At half the int8 rate of vector registers: products of pairs of 16 bits instead of fours of 8."""
    float_ops: float
    step_bytes: float
    """Bytes of one step: decides whether the last-level cache can help."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do at most, in units a second; None where the probe could not measure it."""

    read_large: float
    read_small: float
    float_ops: float | None
    int8_ops: float | None
    int16_ops: float | None


def limits_from(probe: Mapping) -> Limits:
    """From the JSON of `native/bench/bench_limits.cc`."""
    reads, int8 = probe["read_gb_s"], probe.get("int8_gop_s")
    fma = probe.get("fma_gflop_s")
    return Limits(
        read_large=reads["512"] * 1e9,
        read_small=reads["96"] * 1e9,
        float_ops=fma * 1e9 if fma else None,
        int8_ops=max(int8.values()) * 1e9 if int8 else None,
        int16_ops=max(rate for kind, rate in int8.items() if kind != "tiles") * 0.5e9 if int8 else None,
    )


def middle(limits: Sequence[Limits]) -> Limits:
    """Medians of several probes, kind by kind."""
    return Limits(
        read_large=statistics.median(x.read_large for x in limits),
        read_small=statistics.median(x.read_small for x in limits),
        float_ops=_median([x.float_ops for x in limits]),
        int8_ops=_median([x.int8_ops for x in limits]),
        int16_ops=_median([x.int16_ops for x in limits]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds that a piece of work can take here, and which limit sets them."""

    seconds: float
    limit: str
    """`memory` or `arithmetic`."""


def floor(work: Work, limits: Limits) -> Floor:
    """The roofline (Williams, Waterman, Patterson 2009): the slower of reading and computing."""
    rate = limits.read_small if work.step_bytes < CACHED_BYTES else limits.read_large
    reading = work.bytes_read / rate
    computing = 0.0
    if limits.int8_ops and limits.int16_ops and limits.float_ops:
        computing = work.int8_ops / limits.int8_ops + work.int16_ops / limits.int16_ops
        computing += work.float_ops / limits.float_ops
    return Floor(computing, "arithmetic") if computing > reading else Floor(reading, "memory")


def share(work: Work, limits: Limits, seconds: float) -> float:
    """How much of the limit a measured time reached, 1 = all."""
    return floor(work, limits).seconds / seconds
