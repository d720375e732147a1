"""Which of the background may join next: those who ran first, then in fair order."""

from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.sequence import Sequence, WaitReason


class BackgroundLine:
    """The background as one step finds it.

    A tenant joins only while none of its own requests waits that somebody waits for: else one would take the
    room that the other was just given.

    Args:
        queue: who waits.
        now_s: monotonic seconds.

    Attributes:
        reason: why a tenant may not join; None: all may.
        opens_at_s: when the first tenant that has spent its tokens may spend some again (monotonic seconds).
    """

    def __init__(self, queue: WaitQueue, now_s: float) -> None:
        self.reason: WaitReason | None = None
        self.opens_at_s: float | None = None
        self._queue = queue
        self._now_s = now_s
        returning = queue.returning
        self._barred = {s.account.tenant.name for s in returning if not s.is_background}

    def bar(self, seq: Sequence, reason: WaitReason) -> None:
        """Nobody of its tenant joins in this step."""
        self._barred.add(seq.account.tenant.name)
        self.reason = self.reason or reason

    def pick(self) -> Sequence | None:
        """The next one; None: nobody is left."""
        for seq in self._queue.returning:
            if seq.is_background and not self._is_barred(seq):
                return seq
        while (seq := self._queue.background.pick((), self._barred)) is not None:
            if self._is_barred(seq):
                self.bar(seq, WaitReason.TENANT)
                continue
            wait_s = seq.account.allowance_wait_s(self._now_s, is_background=True)
            if wait_s == 0.0:
                return seq
            self.bar(seq, WaitReason.ALLOWANCE)
            self.reason = WaitReason.ALLOWANCE
            opens_at_s = self._now_s + wait_s
            self.opens_at_s = min(opens_at_s, self.opens_at_s or opens_at_s)
        return None

    def _is_barred(self, seq: Sequence) -> bool:
        name = seq.account.tenant.name
        return name in self._barred or name in self._queue.fresh.lanes
