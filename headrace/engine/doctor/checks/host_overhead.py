"""The engine's own bookkeeping takes long beside the model's operations."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace

_ABOVE = 0.3
_BUSY_ABOVE = 0.4
"""Below, it makes answers later, but does not bound how many there are."""


def _look(trace: Trace) -> Finding | None:
    loop_s = trace.delta("headrace_engine_loop_seconds_total")
    masks_s = trace.delta("headrace_grammar_mask_seconds_total")
    model_s = trace.delta("headrace_program_seconds_total")
    steps = trace.both("headrace_phase_steps")
    host_s = loop_s - model_s
    if not steps or model_s <= 0.0 or loop_s < _BUSY_ABOVE * trace.seconds:
        return None
    if host_s / loop_s < _ABOVE or masks_s > 0.5 * host_s:
        return None
    return Finding(
        name="host overhead",
        severity="bottleneck",
        evidence={
            "host_share": host_s / loop_s,
            "host_ms_per_step": 1e3 * host_s / steps,
            "model_ms_per_step": 1e3 * model_s / steps,
            "loop_share": loop_s / trace.seconds,
        },
        remedy="a core for the engine process alone (fewer compute threads than cores, or fewer other "
        "processes); tiny models are bounded by this",
        expected_gain=f"at most {loop_s / model_s:.1f} times the steps",
        weight=0.7 + 0.25 * host_s / loop_s,
    )


CHECK = on_trace(_look)
