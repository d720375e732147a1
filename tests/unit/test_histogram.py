"""Our histogram shows what the library's shows."""

import random

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from headrace.serve.front.histogram import Histogram

BOUNDS = (0.001, 0.0025, 0.5, 1.0, 30.0)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_it_shows_the_same_as_the_librarys() -> None:
    rng, ours, theirs = random.Random(3), CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("wait_seconds", "Waiting.", BOUNDS, ours)
    reference = Reference("wait_seconds", "Waiting.", buckets=BOUNDS, registry=theirs)
    assert lines(ours) == lines(theirs)
    for _ in range(300):
        value = rng.choice((*BOUNDS, 0.0, 99.0, rng.expovariate(1.0)))
        histogram.observe(value)
        reference.observe(value)
    assert lines(ours) == lines(theirs)
    assert 'wait_seconds_bucket{le="+Inf"} 300.0' in lines(ours)
