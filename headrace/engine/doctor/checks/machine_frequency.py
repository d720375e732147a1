"""The processor is told to save power, or runs far below the clock that it may reach."""

from headrace.engine.doctor.finding import SATURATED_ABOVE, Finding, on_machine
from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace

_SLOW = 0.7
"""Of the highest clock: all cores together hold less than one alone, but not so little."""


def _look(machine: Machine, trace: Trace | None) -> Finding | None:
    clock = machine.clock
    is_saving = machine.governor in {"powersave", "conservative"}
    is_at_work = trace is not None and trace.busy >= SATURATED_ABOVE  # an idle processor may be slow
    is_slow = is_at_work and 0.0 < clock.now < _SLOW * clock.most
    if not is_saving and not is_slow:
        return None
    evidence: dict[str, float | str] = {"governor": machine.governor or "not told"}
    evidence["clock_mhz"] = clock.now or "not told"
    evidence["most_mhz"] = clock.most or "not told"
    return Finding(
        name="frequency",
        severity="info",
        evidence=evidence,
        remedy="cpupower frequency-set -g performance"
        if is_saving
        else "look at temperatures, power limits and what else computes on this machine",
        expected_gain=f"up to {clock.most / clock.now:.1f} times the arithmetic"
        if is_at_work and 0.0 < clock.now < clock.most
        else "headrace bench latency MODEL before and after measures it",
    )


CHECK = on_machine(_look)
