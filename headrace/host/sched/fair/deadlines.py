"""Sequences with a deadline, the next one first."""

from heapq import heapify, heappop, heappush

from headrace.host.sched.sequence import Sequence, SequenceState

_SLACK = 64


class Deadlines:
    """Knows who must have ended by when; those who ended before are forgotten in time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def add(self, seq: Sequence, num_live: int) -> None:
        """Follow a sequence, if it has a deadline; `num_live` sequences are not finished."""
        deadline_s = seq.request.terms.deadline_s
        if deadline_s is None:
            return
        heappush(self._heap, (deadline_s, seq.rank[-1], seq))
        if len(self._heap) > 2 * num_live + _SLACK:
            self._heap = [e for e in self._heap if e[2].state is not SequenceState.FINISHED]
            heapify(self._heap)

    def take(self, now_s: float) -> list[Sequence]:
        """Those whose deadline has come."""
        found: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now_s:
            seq = heappop(self._heap)[2]
            if seq.state is not SequenceState.FINISHED:
                found.append(seq)
        return found

    @property
    def next_s(self) -> float | None:
        """The next deadline (of one that may have ended)."""
        return self._heap[0][0] if self._heap else None
