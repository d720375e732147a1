"""Prompts of others stretch the steps of those who decode."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace

_SHARE_ABOVE = 0.35
_TIMES = 3.0


def _look(trace: Trace) -> Finding | None:
    decode, prefill = (trace.phase("headrace_phase_steps", p) for p in ("decode", "prefill"))
    decode_s, prefill_s = (trace.phase("headrace_phase_step_seconds", p) for p in ("decode", "prefill"))
    rows = trace.mean("headrace_num_requests_running")
    everybody = rows + trace.mean("headrace_num_requests_waiting")
    decoding_s = trace.phase("headrace_decode_row_seconds", "prefill")
    if not prefill_s or not decoding_s or rows < 2:
        return None
    if decode:
        stretch = prefill_s / prefill / (decode_s / decode)
    else:  # no step was without prompts: tokens of a step, over those that draw
        stretch = trace.phase("headrace_phase_step_tokens", "prefill") / prefill / (decoding_s / prefill_s)
    decoding = decoding_s / trace.seconds
    # who draws a few tokens after a long prompt is not held up by others' prompts, but by his own
    share = min(1.0, decoding / everybody)
    if stretch < _TIMES or share < _SHARE_ABOVE:
        return None
    return Finding(
        name="prefill interference",
        severity="bottleneck",
        evidence={
            "decode_step_ms": 1e3 * decode_s / decode if decode else "none without prompts",
            "prefill_step_ms": 1e3 * prefill_s / prefill,
            "rows_stretched": decoding,
            "requests_running": rows,
            "requests_waiting": everybody - rows,
        },
        remedy="smaller pieces of prompts beside those who decode (--prefill-step-ms), prefixes that are "
        "shared (the prefix cache computes them once), or another replica for long prompts",
        expected_gain=f"gaps between tokens up to {stretch:.1f} times shorter while prompts are computed",
        weight=0.5 + 0.4 * share,
    )


CHECK = on_trace(_look)
