"""Static batching: a batch starts with those who wait, and the next starts when its last member is done.

A baseline: its cost (slots idle until the slowest member finishes) is counted in
`SchedulerStats.wasted_slot_steps`.
"""

from collections.abc import Callable

from headrace.base.config import ScheduleConfig
from headrace.host.sched.view import BatchPolicy, BatchView, Gate


class Static:
    """The gate opens when nothing runs, for as many as wait then."""

    def __init__(self, config: ScheduleConfig) -> None:
        del config
        self._close_at = 0

    def gate(self, view: BatchView) -> Gate:
        """Those who may still join the batch that is starting (joining can take several steps)."""
        if view.num_running + view.num_preempted == 0:
            self._close_at = view.num_admitted + min(view.num_waiting, view.max_num_seqs)
        return Gate(max(0, self._close_at - view.num_admitted))


POLICY: Callable[[ScheduleConfig], BatchPolicy] = Static
