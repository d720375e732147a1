"""What a check says, and what it is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.engine.doctor.machine import Machine
from headrace.engine.doctor.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What there is to look at; None: not known."""

    trace: Trace | None = None
    machine: Machine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or that bounds the speed.

    `severity` is `bottleneck` (it bounds the speed now), `warning` (it costs speed or fails requests) or
    `info`.
    """

    name: str
    severity: str
    evidence: Mapping[str, float | str]
    remedy: str
    expected_gain: str
    weight: float = 0.0
    """Of a bottleneck: the share of the time that it explains, 0 to 1; the largest is the bottleneck."""


@dataclass(frozen=True, slots=True)
class Check:
    """A plugin of `checks`: silent (None) on a healthy patient."""

    look: Callable[[Patient], Finding | None]


def on_trace(look: Callable[[Trace], Finding | None]) -> Check:
    """A check that needs a trace in which the engine worked."""

    def run(patient: Patient) -> Finding | None:
        trace = patient.trace
        return None if trace is None or trace.busy < IDLE_BELOW else look(trace)

    return Check(run)


def on_machine(look: Callable[[Machine, Trace | None], Finding | None]) -> Check:
    """A check that needs the machine's facts."""

    def run(patient: Patient) -> Finding | None:
        return None if patient.machine is None else look(patient.machine, patient.trace)

    return Check(run)


IDLE_BELOW = 0.1
"""An engine that works less of the time than this is idle."""
SATURATED_ABOVE = 0.8
"""One that works more than this is held up by its steps, if by nothing else."""
