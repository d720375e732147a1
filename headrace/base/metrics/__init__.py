"""What is measured of a request, defined once: server, load tool and doctor use these and no others.

Owns the definitions (`definitions`). Pure functions on moments and counts: they read no clock, and know
neither engine nor HTTP. `docs/metrics.md` shows them at work.
"""

from headrace.base.metrics.definitions import (
    Latency,
    Slo,
    acceptance_by_position,
    acceptance_rate,
    e2el_s,
    goodput,
    itls_s,
    percentile,
    queue_s,
    throughput,
    tokens_per_verification,
    tpot_s,
    ttft_s,
)

__all__ = [
    "Latency",
    "Slo",
    "acceptance_by_position",
    "acceptance_rate",
    "e2el_s",
    "goodput",
    "itls_s",
    "percentile",
    "queue_s",
    "throughput",
    "tokens_per_verification",
    "tpot_s",
    "ttft_s",
]
