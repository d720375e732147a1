"""The KV pool is full: requests wait for blocks, or give way and are computed again."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace


def _look(trace: Trace) -> Finding | None:
    usage = trace.mean("headrace_kv_cache_usage_perc")
    preemptions = trace.delta("headrace_num_preemptions_total")
    waiting = trace.mean("headrace_num_requests_waiting")
    running = trace.median("headrace_num_requests_running")
    slots = trace.mean("headrace_num_slots")
    is_full = usage > 0.75 and waiting >= 0.5 and (not slots or running < 0.9 * slots)
    if not is_full and preemptions < 1:
        return None
    return Finding(
        name="KV capacity",
        severity="bottleneck",
        evidence={
            "kv_usage": usage,
            "preemptions": preemptions,
            "requests_waiting": waiting,
            "requests_running": running,
            "slots": slots,
        },
        remedy="a larger pool (--kv-cache-memory-bytes), keys and values in 8 bits (--kv-cache-dtype int8: "
        "twice the tokens), or fewer sequences at a time (--max-num-seqs) when they only push each other out",
        expected_gain=f"room for {1 + waiting / max(running, 1.0):.1f} times the requests that run now",
        weight=0.9,
    )


CHECK = on_trace(_look)
