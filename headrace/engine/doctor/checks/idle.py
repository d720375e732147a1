"""The engine hardly works: whatever is slow lies outside."""

from headrace.engine.doctor.finding import IDLE_BELOW, Check, Finding, Patient


def _look(patient: Patient) -> Finding | None:
    trace = patient.trace
    if trace is None or trace.busy >= IDLE_BELOW:
        return None
    return Finding(
        name="idle",
        severity="bottleneck",
        evidence={"busy_share": trace.busy, "requests_waiting": trace.mean("headrace_num_requests_waiting")},
        remedy="nothing to do here: send more requests, or look at what is before the server",
        expected_gain="none",
        weight=0.3 * (1.0 - trace.busy),  # whatever keeps requests from the engine leads
    )


CHECK = Check(_look)
