"""Outputs leave later than they are made: the network or the clients are slow."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace

_TIMES = 2.5
_FRONT_BELOW = 0.8


def _look(trace: Trace) -> Finding | None:
    gap_s = trace.mean_observed("headrace_inter_token_latency_seconds")
    made_s = trace.mean_observed("headrace_request_time_per_output_token_seconds")
    if gap_s is None or not made_s or gap_s < _TIMES * made_s:
        return None
    if trace.share("process_cpu_seconds_total") >= _FRONT_BELOW:
        return None  # the HTTP process itself is what is slow
    return Finding(
        name="network/client",
        severity="bottleneck",
        evidence={"ms_between_outputs_sent": 1e3 * gap_s, "ms_between_tokens_made": 1e3 * made_s},
        remedy="clients read slower than tokens are made: look at the network, proxies that buffer, and what "
        "the clients do with each event",
        expected_gain=f"answers arrive up to {gap_s / made_s:.1f} times as fast",
        weight=0.75,
    )


CHECK = on_trace(_look)
