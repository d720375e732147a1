"""Answers ended because logits were no numbers."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace


def _look(trace: Trace) -> Finding | None:
    count = trace.delta("headrace_numeric_errors_total")
    if not count:
        return None
    return Finding(
        name="numeric errors",
        severity="warning",
        evidence={"sequences": count},
        remedy="the model's weights are broken, or its number format overflows: compare with another file",
        expected_gain="requests that do not fail",
    )


CHECK = on_trace(_look)
