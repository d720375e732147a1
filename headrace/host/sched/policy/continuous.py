"""Continuous batching: a sequence joins as soon as there is room, and leaves when it is done.

Iteration-level scheduling: Yu et al. 2022 (Orca). Prompts are split over steps and mixed with decoding:
Agrawal et al. 2024 (Sarathi-Serve), arXiv 2403.02310.
"""

from collections.abc import Callable

from headrace.base.config import ScheduleConfig
from headrace.host.sched.view import BatchPolicy, BatchView, Gate


class Continuous:
    """The gate is always open."""

    def __init__(self, config: ScheduleConfig) -> None:
        del config

    def gate(self, view: BatchView) -> Gate:
        """Everybody may join."""
        return Gate(view.max_num_seqs)


POLICY: Callable[[ScheduleConfig], BatchPolicy] = Continuous
