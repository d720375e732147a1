"""Which roof bounds the steps of a trace."""

from headrace.engine.doctor.trace import Trace

LEAST_OF_LIMIT = 0.5
"""Steps that take more than twice what memory allows do not wait for memory alone."""
LEAST_OF_COMPUTE = 0.2
"""The same of arithmetic, of which prompts reach 0.4 to 0.5 where nothing else has the cores."""


def memory_share(trace: Trace) -> float | None:
    """Of the least time that the machine allows for the steps, the share of those that memory bounds."""
    memory_s = trace.both("headrace_memory_roof_seconds")
    compute_s = trace.both("headrace_compute_roof_seconds")
    total_s = memory_s + compute_s
    return memory_s / total_s if total_s > 0.0 else None


def roof_share(trace: Trace) -> float:
    """The least time over the time that steps took: how near they are to the machine's limit."""
    least_s = trace.both("headrace_memory_roof_seconds") + trace.both("headrace_compute_roof_seconds")
    return min(1.0, least_s / trace.step_s) if trace.step_s else 0.0


def waits_for_cores(trace: Trace) -> bool:
    """Whether steps take far longer than the roof that bounds most of them asks for."""
    is_memory = (memory_share(trace) or 0.0) >= 0.5
    return roof_share(trace) < (LEAST_OF_LIMIT if is_memory else LEAST_OF_COMPUTE)


def rows_per_step(trace: Trace) -> float:
    """Tokens of a decoding step, on average."""
    steps = trace.phase("headrace_phase_steps", "decode")
    return trace.phase("headrace_phase_step_tokens", "decode") / steps if steps else 0.0
