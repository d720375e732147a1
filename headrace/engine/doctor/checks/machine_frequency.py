"""The processor is told to save power."""

from headrace.engine.doctor.finding import Finding, on_machine
from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace


def _look(machine: Machine, trace: Trace | None) -> Finding | None:
    del trace
    if machine.governor not in {"powersave", "conservative"}:
        return None
    return Finding(
        name="frequency",
        severity="info",
        evidence={"governor": machine.governor},
        remedy="cpupower frequency-set -g performance",
        expected_gain="the clock rate that the processor can hold",
    )


CHECK = on_machine(_look)
