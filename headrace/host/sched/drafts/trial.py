"""Trials of a drafter beside a lookup: rows that it drafts for though little is known or hoped of it."""

from headrace.host.sched.drafts.track import FIRST_RATE, Track

FIRST = 8.0
"""Rows whose first draft is wrong before a drafter is believed to be worse than at first."""
AGAIN = 4.0
"""The same when it is tried again."""
RIGHT = (1.0 - FIRST_RATE) / FIRST_RATE
"""So much of a row is made good by one whose first draft is right."""
MOST = 32
"""Rows of a trial, however right: then what is known of each sequence and each place says more."""
OWN = 4
"""Rows of one sequence, for the same reason."""


class Trial:
    """One trial after the other; the first is on from the start."""

    def __init__(self) -> None:
        self.is_retry = False
        """It is not the first, and the drafter has not proven itself since."""
        self._left = FIRST
        self._num_rows = 0
        self._own: dict[Track, int] = {}
        """Rows of each sequence, of which there are at most `MOST`."""

    @property
    def is_on(self) -> bool:
        """Whether the drafter is tried."""
        return self._left > 0

    def favours(self, track: Track) -> bool:
        """Whether a sequence's drafts shall seem at least as good as those of which nothing is known."""
        return self.is_on and self._own.get(track, 0) < OWN

    def judge(self, track: Track, *, is_right: bool) -> None:
        """A row of the drafter was compared with what was drawn; `is_right`: its first draft agreed."""
        if not self.is_on:
            return
        self._own[track] = self._own.get(track, 0) + 1
        self._num_rows += 1
        self._left = min(FIRST, self._left + (RIGHT if is_right else -1.0))
        if self._num_rows >= MOST or self._left <= 0:
            self.end()

    def again(self) -> None:
        """Begin another, unless the first goes on because nobody was drafted for."""
        if self._left == FIRST and not self._num_rows:
            return
        self.end()
        self._left, self.is_retry = AGAIN, True

    def end(self, *, is_proven: bool = False) -> None:
        """It is over; `is_proven`: the drafter drafts well, and reading for it is no longer for a try."""
        self._left, self._num_rows = 0.0, 0
        self._own.clear()
        self.is_retry = self.is_retry and not is_proven
