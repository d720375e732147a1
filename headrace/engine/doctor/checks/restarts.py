"""The engine process was started again, or does not live."""

from headrace.engine.doctor.finding import Check, Finding, Patient


def _look(patient: Patient) -> Finding | None:
    trace = patient.trace
    if trace is None:
        return None
    restarts = max(0.0, trace.delta("headrace_engine_restarts"))
    last = trace.scrapes[-1].values
    is_dead = last.get("headrace_engine_alive", 1.0) < 1.0
    if not restarts and not is_dead:
        return None
    return Finding(
        name="engine restarts",
        severity="warning",
        evidence={"restarts": restarts, "alive": float(not is_dead)},
        remedy="read the server's log: it says why the engine ended; memory limits are the usual reason",
        expected_gain="requests that do not fail",
    )


CHECK = Check(_look)
