"""Drafts of a model agree far less often than such a pair does: the drafter may be fed the wrong tokens.

Drafts change no answer, so nothing but their acceptance tells that a drafter computes nonsense. Drafts of
the text itself (ngram, suffix) are left out: on a text that repeats nothing they agree with nothing.
"""

import re

from headrace.base.metrics import acceptance_rate, tokens_per_verification
from headrace.base.tasks import EARLY_EXIT, LAYERS, SOURCES
from headrace.engine.doctor.finding import Check, Finding, Patient
from headrace.engine.doctor.trace import Trace

_METHOD = re.compile(
    r'headrace_setting\{asked="(.*?)",name="speculate\.method",reason="(.*)",value=".*?"\}', re.DOTALL
)
_COMPUTES = re.compile(f"(?:^|,)({'|'.join(SOURCES)})=")
_TRAINED = tuple(name for name, source in SOURCES.items() if source != LAYERS)
"""Made from weights of their own: layers of the model itself need not agree with it."""
_LEAST_ROWS = 64
"""Rows with drafts, since the server's start: of fewer, a share says little."""
_LEAST_OF_PAIR = 0.3
"""At the first place. The tests' pair that belongs together agrees in 0.5 of its rows; a drafter equal to its
target, which is right always, in 0.24 once it is fed the token before."""
_LEAST_OF_ITSELF = 0.95
"""A model that drafts for itself is right always, but for drafts beyond the end of an answer."""


def _look(patient: Patient) -> Finding | None:
    trace = patient.trace
    if trace is None:
        return None
    method, is_itself = _drafter(trace)
    if not (is_itself or method in _TRAINED):
        return None
    found = _rates(trace, method)
    if found is None:
        return None
    first, overall, tokens = found
    least = _LEAST_OF_ITSELF if is_itself else _LEAST_OF_PAIR
    if (overall if is_itself else first) >= least:
        return None
    return Finding(
        name="drafts refused",
        severity="warning",
        evidence={
            "drafter": method,
            "accepted_at_first_place": first,
            "accepted_of_checked": overall,
            "tokens_per_row": tokens,
        },
        remedy="is the drafter's input shifted, or is it made for another model? With --speculate "
        f"{EARLY_EXIT}=N, N all layers of the model, nearly every draft must be accepted: if so, take "
        "another drafter, else report it; until then --speculate auto",
        expected_gain=f"{1.0 + least:.1f} tokens a row or more instead of {tokens:.2f}",
    )


def _rates(trace: Trace, method: str) -> tuple[float, float, float] | None:
    """Since the server's start: the share accepted at the first place, of all, and tokens a row.

    Those of this method's drafts: a lookup beside it has others.
    """
    last, name = trace.scrapes[-1].values, "headrace_spec_decode_num"
    keys = "drafts", "draft_tokens", "accepted_tokens", "first_accepted"
    rows, checked, accepted, at_first = (
        int(last.get(f'{name}_{key}_per_method_total{{method="{method}"}}', 0.0)) for key in keys
    )
    first, overall = acceptance_rate(at_first, rows), acceptance_rate(accepted, checked)
    tokens = tokens_per_verification(accepted, rows)
    if rows < _LEAST_ROWS or first is None or overall is None or tokens is None:
        return None
    return first, overall, tokens


def _drafter(trace: Trace) -> tuple[str, bool]:
    """The method that computes drafts, if any, and whether it is the whole model itself."""
    for name in trace.scrapes[-1].values:
        if match := _METHOD.fullmatch(name):
            layers = re.search(r"the first (\d+) of (\d+) layers draft", match[2])
            computes = _COMPUTES.search(match[1])
            return computes[1] if computes else "", layers is not None and layers[1] == layers[2]
    return "", False


CHECK = Check(_look)
