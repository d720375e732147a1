"""Huge pages are switched off."""

from headrace.engine.doctor.finding import Finding, on_machine
from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace


def _look(machine: Machine, trace: Trace | None) -> Finding | None:
    del trace
    if machine.huge_pages != "never":
        return None
    return Finding(
        name="huge pages",
        severity="info",
        evidence={"transparent_hugepage": machine.huge_pages},
        remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        expected_gain="headrace bench latency MODEL before and after measures it",
    )


CHECK = on_machine(_look)
