"""The engine's own bookkeeping takes long beside its steps."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace

_ABOVE = 0.3


def _look(trace: Trace) -> Finding | None:
    loop_s = trace.delta("headrace_engine_loop_seconds_total")
    masks_s = trace.delta("headrace_grammar_mask_seconds_total")
    host_s = loop_s - trace.step_s
    steps = trace.both("headrace_phase_steps")
    if not steps or loop_s <= 0.0 or host_s / loop_s < _ABOVE or masks_s > 0.5 * host_s:
        return None
    return Finding(
        name="host overhead",
        severity="bottleneck",
        evidence={
            "host_share": host_s / loop_s,
            "host_ms_per_step": 1e3 * host_s / steps,
            "step_ms": 1e3 * trace.step_s / steps,
        },
        remedy="a core for the engine process alone (fewer compute threads than cores, or fewer other "
        "processes); tiny models are bounded by this",
        expected_gain=f"at most {loop_s / max(trace.step_s, 1e-9):.1f} times the steps",
        weight=0.7 + 0.25 * host_s / loop_s,
    )


CHECK = on_trace(_look)
