"""How busy the process is that speaks HTTP."""

from headrace.engine.doctor.trace import Trace

FULL = 0.8
"""Cores: Python computes on one."""


def front_cores(trace: Trace) -> float:
    """Cores that the HTTP process uses; 0.0 where it is the engine's process too and nobody can tell."""
    is_engine_too = trace.mean("headrace_engine_in_process") > 0.0
    return 0.0 if is_engine_too else trace.share("process_cpu_seconds_total")
