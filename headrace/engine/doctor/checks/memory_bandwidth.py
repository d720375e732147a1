"""Steps wait for weights and keys from memory."""

from headrace.engine.doctor.checks._roofs import memory_share, roof_share, rows_per_step, waits_for_cores
from headrace.engine.doctor.finding import SATURATED_ABOVE, Finding, on_trace
from headrace.engine.doctor.trace import Trace


def _look(trace: Trace) -> Finding | None:
    share = memory_share(trace)
    if share is None or share < 0.5 or trace.step_s / trace.seconds < SATURATED_ABOVE:
        return None
    if waits_for_cores(trace):  # see cores_taken
        return None
    rows = max(1.0, rows_per_step(trace))
    return Finding(
        name="memory bandwidth",
        severity="bottleneck",
        evidence={
            "step_share": trace.step_s / trace.seconds,
            "memory_bound_share": share,
            "of_limit": roof_share(trace),
            "rows_per_step": rows,
        },
        remedy="read the weights less often for each token: more requests at a time, drafts that are checked "
        "together (--speculate), or smaller weights (a model with fewer bits)",
        expected_gain="another row in each step costs nearly nothing while memory is the limit"
        if rows < 4
        else "fewer bits per weight: in proportion to the bytes",
        weight=0.6 * share * min(1.0, trace.step_s / trace.seconds),
    )


CHECK = on_trace(_look)
