"""Steps take far longer than memory or arithmetic asks for."""

from headrace.engine.doctor.checks._roofs import memory_share, roof_share, waits_for_cores
from headrace.engine.doctor.finding import SATURATED_ABOVE, Finding, on_trace
from headrace.engine.doctor.trace import Trace


def _look(trace: Trace) -> Finding | None:
    share, near = memory_share(trace), roof_share(trace)
    if share is None or trace.step_s / trace.seconds < SATURATED_ABOVE or not waits_for_cores(trace):
        return None
    return Finding(
        name="cores taken",
        severity="bottleneck",
        evidence={
            "step_share": trace.step_s / trace.seconds,
            "memory_bound_share": share,
            "of_limit": near,
        },
        remedy="look for other work on the server's cores (top, other containers, a neighbouring virtual "
        "machine) and move it away, or give the server cores of its own and as many --threads",
        expected_gain=f"up to {1.0 / max(near, 0.01):.1f} times the tokens a second with the cores to "
        "itself; less for a model so small that a step is mostly overhead",
        weight=0.6 * max(share, 1.0 - share) * min(1.0, trace.step_s / trace.seconds),
    )


CHECK = on_trace(_look)
