"""Steps wait for weights and keys from memory."""

from headrace.engine.doctor.checks._roofs import memory_share, roof_share, rows_per_step, waits_for_cores
from headrace.engine.doctor.finding import SATURATED_ABOVE, Finding, on_trace
from headrace.engine.doctor.gains import DecodeStep
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
        expected_gain=_gain(trace),
        weight=0.6 * share * min(1.0, trace.step_s / trace.seconds),
    )


def _gain(trace: Trace) -> str:
    """Of more rows and of smaller weights by the cost model; of drafts what checking them gains now."""
    step = DecodeStep.of(trace)
    drafts = "drafts: headrace bench ablate MODEL --only speculation measures it"
    if trace.delta("headrace_spec_decode_num_drafts_total"):
        drafts = f"drafts: {trace.mean('headrace_spec_decode_speedup'):.1f} times already"
    if step is None:
        return f"more rows: headrace bench serve --ramp measures it; {drafts}"
    return (
        f"twice the rows: {step.of_rows(2.0):.1f} times the tokens a second; "
        f"weights of half the bytes: {step.of_weights(0.5):.1f} times; {drafts}"
    )


CHECK = on_trace(_look)
