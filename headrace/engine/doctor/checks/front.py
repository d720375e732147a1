"""Tokenization, grammars or the HTTP process take the time."""

from headrace.engine.doctor.checks._front import FULL, front_cores
from headrace.engine.doctor.finding import Check, Finding, Patient

_GRAMMAR_ABOVE = 0.25


def _look(patient: Patient) -> Finding | None:
    trace = patient.trace
    if trace is None:
        return None
    front = front_cores(trace)
    masks = trace.share("headrace_grammar_mask_seconds_total")
    compiling = trace.share("headrace_grammar_compilation_time_seconds_total")
    grammar = max(masks, compiling)
    if front < FULL and grammar < _GRAMMAR_ABOVE:
        return None
    is_grammar = grammar >= _GRAMMAR_ABOVE
    return Finding(
        name="tokenization/grammar",
        severity="bottleneck",
        evidence={"http_process_cores": front, "mask_share": masks, "grammar_compile_share": compiling},
        remedy="use fewer distinct schemas (compiled grammars are kept), or simpler ones"
        if is_grammar
        else "the HTTP process fills its core: send token ids instead of long texts, stream less finely, or "
        "run two servers behind one address",
        expected_gain=f"up to {1 / max(0.1, 1 - min(0.9, grammar)):.1f} times the steps of those requests"
        if is_grammar
        else f"two servers behind one address: up to {min(2.0, 1.0 / max(trace.busy, 0.01)):.1f} times the "
        "requests a second, by when this engine would be full",
        weight=0.8,
    )


CHECK = Check(_look)
