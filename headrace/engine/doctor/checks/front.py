"""Tokenization, grammars or the HTTP process take the time."""

from headrace.engine.doctor.finding import Finding, on_trace
from headrace.engine.doctor.trace import Trace

_FRONT_ABOVE = 0.8
_GRAMMAR_ABOVE = 0.25


def _look(trace: Trace) -> Finding | None:
    front = trace.share("process_cpu_seconds_total")
    masks = trace.share("headrace_grammar_mask_seconds_total")
    compiling = trace.share("headrace_grammar_compilation_time_seconds_total")
    grammar = max(masks, compiling)
    if front < _FRONT_ABOVE and grammar < _GRAMMAR_ABOVE:
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
        else "the wait for the HTTP process",
        weight=0.8,
    )


CHECK = on_trace(_look)
