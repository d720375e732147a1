"""Dynamic batching: a batch starts when enough wait, or the oldest has waited long enough.

A baseline, the way model servers for fixed-shape models batch. Its cost at low load is the window that a lone
request waits in full.
"""

from collections.abc import Callable

from headrace.base.config import ScheduleConfig
from headrace.host.sched.view import BatchPolicy, BatchView, Gate


class Dynamic:
    """The gate opens when nothing runs, and `dynamic_size` wait or `dynamic_window_ms` is over."""

    def __init__(self, config: ScheduleConfig) -> None:
        self._size = config.dynamic_size
        self._window_s = config.dynamic_window_ms / 1000.0
        self._close_at = 0

    def gate(self, view: BatchView) -> Gate:
        """Those who may still join the batch that is starting."""
        if view.num_running + view.num_preempted == 0:
            self._close_at = view.num_admitted
            if view.oldest_arrival_s is None:
                return Gate(0)
            opens_at_s = view.oldest_arrival_s + self._window_s
            if view.num_waiting < min(self._size, view.max_num_seqs) and view.now_s < opens_at_s:
                return Gate(0, opens_at_s)
            self._close_at += min(view.num_waiting, view.max_num_seqs)
        return Gate(max(0, self._close_at - view.num_admitted))


POLICY: Callable[[ScheduleConfig], BatchPolicy] = Dynamic
