"""Requests wait for a slot although the machine could run more of them."""

from headrace.engine.doctor.checks._roofs import memory_share
from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.gains import DecodeStep
from headrace.engine.doctor.trace import Trace

_LEAST_MEMORY_SHARE = 0.5
"""Below, arithmetic bounds the steps: more slots would only make each of them longer."""


def _look(trace: Trace) -> Finding | None:
    waiting = trace.mean("headrace_num_requests_waiting")
    running = trace.median("headrace_num_requests_running")
    slots = trace.mean("headrace_num_slots")
    share = memory_share(trace)
    if not slots or waiting < 0.5 or running < 0.85 * slots or share is None or share < _LEAST_MEMORY_SHARE:
        return None
    step, times = DecodeStep.of(trace), 1.0 + waiting / running
    gain = min(2.0, times) if step is None else step.of_rows(times)
    wait_s = trace.mean_observed("headrace_request_queue_time_seconds")
    return Finding(
        name="queue/admission",
        severity="bottleneck",
        evidence={
            "requests_waiting": waiting,
            "requests_running": running,
            "slots": slots,
            "queue_s": wait_s or 0.0,
            "memory_bound_share": share,
        },
        remedy=f"raise --max-num-seqs above {slots:.0f}: steps wait for memory, so more rows cost little",
        expected_gain=f"with all of them running up to {gain:.1f} times the tokens a second",
        weight=0.85,
    )


CHECK = on_trace(_look)
