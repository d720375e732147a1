"""Steps wait for arithmetic."""

from headrace.engine.doctor.checks._roofs import memory_share, roof_share, rows_per_step, waits_for_cores
from headrace.engine.doctor.finding import SATURATED_ABOVE, Finding, on_trace
from headrace.engine.doctor.gains import of_cores
from headrace.engine.doctor.trace import Trace


def _look(trace: Trace) -> Finding | None:
    share = memory_share(trace)
    if share is None or share >= 0.5 or trace.step_s / trace.seconds < SATURATED_ABOVE:
        return None
    if waits_for_cores(trace):  # see cores_taken
        return None
    prefill = trace.phase("headrace_phase_step_tokens", "prefill")
    prompt_ms = 1e3 * trace.phase("headrace_phase_step_seconds", "prefill") / max(prefill, 1.0)
    step_share = min(1.0, trace.step_s / trace.seconds)
    gain = of_cores((1.0 - share) * step_share, 2.0)
    prompts = trace.delta("headrace_prompt_tokens_total")
    cached = trace.delta("headrace_prompt_tokens_cached_total")
    return Finding(
        name="compute",
        severity="bottleneck",
        evidence={
            "step_share": trace.step_s / trace.seconds,
            "compute_bound_share": 1.0 - share,
            "of_limit": roof_share(trace),
            "rows_per_step": rows_per_step(trace),
            "cached_prompt_share": cached / prompts if prompts else 0.0,
        },
        remedy="more cores or another replica; prompts that begin alike share their computing when the "
        "common part comes first; a smaller model",
        expected_gain=f"twice the cores: {gain:.1f} times the tokens a second; "
        f"each 100 prompt tokens from the prefix cache: {100 * prompt_ms:.3g} ms less",
        weight=0.6 * (1.0 - share) * step_share,
    )


CHECK = on_trace(_look)
