"""Figures of the dashboard that are computed from counters."""

from collections.abc import Mapping
from typing import Any

from headrace.engine.cost.meter import PHASES
from headrace.engine.doctor.trace import Trace


def roofline(trace: Trace) -> dict[str, Any] | None:
    """How near the steps of a trace came to the machine's roofs (Williams et al., CACM 2009).

    Returns:
        The roofs `limit_bytes_s` and `limit_operations_s`; of each phase that had steps its `bytes_s`,
        `operations_s` (over the seconds of its own steps) and `share`, the larger of both over its roof.
        None: the engine does not tell its limits.
    """
    last = trace.scrapes[-1].values
    limit_bytes = last.get("headrace_limit_read_bytes_per_second", 0.0)
    limit_operations = last.get("headrace_limit_operations_per_second", 0.0)
    if limit_bytes <= 0.0 or limit_operations <= 0.0:
        return None
    phases: dict[str, dict[str, float]] = {}
    for phase in PHASES:
        seconds = trace.phase("headrace_phase_step_seconds", phase)
        if seconds > 0.0:
            bytes_s = trace.phase("headrace_step_bytes_read", phase) / seconds
            operations_s = trace.phase("headrace_step_operations", phase) / seconds
            share = max(bytes_s / limit_bytes, operations_s / limit_operations)
            phases[phase] = {"bytes_s": bytes_s, "operations_s": operations_s, "share": share}
    return {"limit_bytes_s": limit_bytes, "limit_operations_s": limit_operations, "phases": phases}


def speculation(counters: Mapping[str, float]) -> dict[str, float | None] | None:
    """What checking drafts gave since the engine started.

    Returns:
        `acceptance`: share of checked drafts that were accepted; `tokens_per_row`: of rows with drafts;
        `speedup`: estimated seconds of plain steps over those that steps with drafts took; each None while
        nothing was checked. None: there are no drafts.
    """
    if "drafts_checked" not in counters:
        return None

    def ratio(above: str, below: str, plus: float = 0.0) -> float | None:
        under = counters.get(below, 0.0)
        return plus + counters.get(above, 0.0) / under if under else None

    return {
        "acceptance": ratio("drafts_accepted", "drafts_checked"),
        "tokens_per_row": ratio("drafts_accepted", "draft_rows", 1.0),
        "speedup": ratio("draft_plain_seconds", "draft_step_seconds"),
    }
