"""What a batching policy sees, and what it decides."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """The scheduler's state in numbers."""

    now_s: float
    num_running: int
    num_preempted: int
    """Sequences that ran, lost their blocks and wait to return; they belong to the running batch."""
    num_waiting: int
    """Sequences that have never run."""
    num_admitted: int
    """First admissions since start."""
    oldest_arrival_s: float | None
    """Arrival of the sequence that has waited longest; None when none waits."""
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class Gate:
    """A policy's decision for one step."""

    num_admit: int
    """How many waiting sequences may join now."""
    opens_at_s: float | None = None
    """When the decision can change without any event (monotonic seconds)."""


class BatchPolicy(Protocol):
    """Decides when waiting sequences may join the running ones."""

    def gate(self, view: BatchView) -> Gate:
        """How many may join in this step. Called once per plan; may keep its own state between calls."""
        ...
