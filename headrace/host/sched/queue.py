"""Those who wait: in which order, since when, and why.

Five places: `returning` (preempted, always first of their kind, by rank), `fresh` and `background` (never
ran, in fair order), parked (siblings whose leader's prompt is being computed), and held (their grammars are
being compiled).

The time waited is booked by reason without touching each sequence in each step: one clock per queue adds the
seconds between plans to the reason that held back its head; a sequence notes the clock when it enters and
takes the difference when it leaves. From the moment at which one that came later was let in before it for its
better rank, a sequence waits for its priority, whatever holds back the head.
"""

from bisect import insort
from collections.abc import Collection, Iterator, Mapping

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId
from headrace.host.sched.fair.line import FairLine, cut
from headrace.host.sched.fair.rank import Rank
from headrace.host.sched.sequence import Sequence, SequenceState, WaitReason


class ReasonClock:
    """Seconds by reason, since start."""

    def __init__(self, now_s: float) -> None:
        self.reason = WaitReason.STEP
        self._now_s = now_s
        self._seconds = dict.fromkeys(WaitReason, 0.0)

    def advance(self, now_s: float) -> None:
        """Book the time since the last call on the reason in force."""
        self._seconds[self.reason] += max(0.0, now_s - self._now_s)
        self._now_s = max(self._now_s, now_s)

    def snapshot(self) -> dict[WaitReason, float]:
        """The clock's state."""
        return dict(self._seconds)


class WaitQueue:
    """Waiting sequences in the order in which they should run.

    Args:
        now_s: monotonic seconds.
        ageing_s: see `FairLine`.
    """

    def __init__(self, now_s: float, ageing_s: float) -> None:
        self.clock = ReasonClock(now_s)
        self.returning: list[Sequence] = []
        self.fresh = FairLine(ageing_s)
        self.background = FairLine(ageing_s)
        self.num_parked = 0
        self.num_background = 0
        """Sequences of the background, wherever they wait."""
        self.num_tokens = 0
        """Prompt tokens of sequences that wait for their first step, without the background."""
        self.background_tokens = 0
        """The same of the background."""
        self._parked: dict[RequestId, list[Sequence]] = {}
        self._held: dict[RequestId, Sequence] = {}
        self._since: dict[RequestId, tuple[float, dict[WaitReason, float] | None]] = {}
        self._arrivals: dict[RequestId, float] = {}
        self._overtaken: set[RequestId] = set()
        self._num_moved = 0
        """Sequences in both lines whose rank is not that of their arrival."""

    @property
    def num_waiting(self) -> int:
        """Sequences that have never run, parked ones included, but no held ones and no background's line."""
        return len(self.fresh) + self.num_parked

    @property
    def num_total(self) -> int:
        """Everybody who waits."""
        return len(self._since)

    @property
    def num_foreground(self) -> int:
        """Everybody who waits but the background."""
        return len(self._since) - self.num_background

    @property
    def num_ready(self) -> int:
        """Of those, without the background, whom nothing but room keeps from running."""
        return max(0, self.num_foreground - self.num_parked - len(self._held))

    @property
    def held_ids(self) -> Collection[RequestId]:
        """Those who cannot run yet, whatever room there is."""
        return self._held

    @property
    def oldest_arrival_s(self) -> float | None:
        """Arrival of the sequence, not of the background, that has waited longest for its first step."""
        return next(iter(self._arrivals.values()), None)

    def push(self, seq: Sequence, now_s: float) -> None:
        """A new sequence; it waits for its leader's prompt, if that is not computed yet."""
        self._enter(seq)
        self._join_or_park(seq, now_s)

    def hold(self, seq: Sequence, now_s: float) -> None:
        """A new sequence that cannot run before its grammar is compiled."""
        self._enter(seq)
        self._held[seq.request_id] = seq
        self._since[seq.request_id] = (now_s, None)

    def let_go(self, seq: Sequence, now_s: float) -> None:
        """The grammar of a held sequence is compiled."""
        since_s, _ = self._since.pop(seq.request_id)
        seq.life.waits[WaitReason.GRAMMAR] = now_s - since_s
        del self._held[seq.request_id]
        self._join_or_park(seq, now_s)

    def release(self, leader: RequestId, now_s: float) -> None:
        """The leader's prompt is computed, or the leader is gone: its siblings may run."""
        for seq in self._parked.pop(leader, ()):
            self.num_parked -= 1
            since_s, _ = self._since.pop(seq.request_id)
            seq.life.waits[WaitReason.LEADER] = now_s - since_s
            self._join(seq, now_s)

    def push_preempted(self, seq: Sequence, now_s: float) -> None:
        """A sequence that ran comes back."""
        insort(self.returning, seq, key=_rank)
        self.num_background += seq.is_background
        self._since[seq.request_id] = (now_s, None)

    def pop(self, seq: Sequence, now_s: float) -> None:
        """Take a sequence out, wherever it waits, and book the time it waited."""
        seq.life.waits = self.waited(seq, now_s)
        _, before = self._since.pop(seq.request_id)
        self.num_background -= seq.is_background
        if before is not None:
            self._line_of(seq).remove(seq)
            self._overtaken.discard(seq.request_id)
            self._num_moved -= _is_moved(seq)
        elif seq.life.num_preempted > 0:
            cut(self.returning, seq)
            return
        elif seq.request_id in self._held:
            del self._held[seq.request_id]
        else:
            self._unpark(seq)
        if seq.is_background:
            self.background_tokens -= self._tokens_of(seq)
        else:
            self.num_tokens -= self._tokens_of(seq)
            seq.account.num_waiting -= 1
            del self._arrivals[seq.request_id]

    def note_overtaken(self, seq: Sequence, now_s: float) -> None:
        """One that never ran is let in: those of its line that came before it and rank behind it waited on.

        Cost: constant while nobody has a priority, else linear in the line.
        """
        if not (self._num_moved or _is_moved(seq)):
            return
        for other in self._line_of(seq):
            is_behind = other.rank[-1] < seq.rank[-1] and other.rank > seq.rank
            if is_behind and other.request_id not in self._overtaken:
                other.life.waits = self.waited(other, now_s)
                self._since[other.request_id] = (now_s, self.clock.snapshot())
                self._overtaken.add(other.request_id)

    def waited(self, seq: Sequence, now_s: float) -> dict[WaitReason, float]:
        """Seconds by reason that a sequence has waited, up to now when it waits still."""
        self.clock.advance(now_s)
        waits = dict(seq.life.waits)
        since = self._since.get(seq.request_id)
        if since is None:
            return waits
        since_s, before = since
        if seq.request_id in self._overtaken:
            waits[WaitReason.PRIORITY] = waits.get(WaitReason.PRIORITY, 0.0) + now_s - since_s
            return waits
        if before is not None:
            for reason, seconds in self.clock.snapshot().items():
                if seconds > before[reason]:
                    waits[reason] = waits.get(reason, 0.0) + seconds - before[reason]
            return waits
        reason = WaitReason.GRAMMAR if seq.request_id in self._held else WaitReason.LEADER
        if seq.life.num_preempted > 0:
            reason = WaitReason.PREEMPTED
        waits[reason] = waits.get(reason, 0.0) + now_s - since_s
        return waits

    def overdue(self, deadline_s: float) -> list[Sequence]:
        """Sequences that arrived before `deadline_s` and have never run; the background may wait."""
        parked = (seq for group in self._parked.values() for seq in group)
        waiting = (*self.fresh, *self._held.values(), *parked)
        return [s for s in waiting if s.life.arrival_s <= deadline_s and not s.is_background]

    def lanes(self) -> Mapping[str, list[Sequence]]:
        """By tenant and in order of rank, those who have never run, without parked ones and the background.

        Do not change them.
        """
        if not self._held:
            return self.fresh.lanes
        found: dict[str, list[Sequence]] = {}
        for seq in sorted((*self.fresh, *self._held.values()), key=_rank):
            if not seq.is_background:
                found.setdefault(seq.account.tenant.name, []).append(seq)
        return found

    def check(self) -> None:
        """Order and counts.

        Raises:
            InvariantError: something does not add up.
        """
        ranks = [s.rank for s in self.returning]
        if ranks != sorted(set(ranks)):
            raise InvariantError(f"the queue is out of order: {ranks}")
        self.fresh.check()
        self.background.check()
        parked = [s for group in self._parked.values() for s in group]
        waiting = [*self.fresh, *self.background, *self._held.values(), *parked]
        later = [s for s in waiting if s.is_background]
        in_line = (*self.fresh, *self.background)
        names = {s.request_id for s in in_line}
        if self._num_moved != sum(map(_is_moved, in_line)) or not self._overtaken <= names:
            raise InvariantError("the queue's priorities do not match its sequences")
        num_later = len(later) + sum(s.is_background for s in self.returning)
        if len(parked) != self.num_parked or len(self._since) != len(waiting) + len(self.returning):
            raise InvariantError("the queue's counts do not match its sequences")
        if num_later != self.num_background or len(self._arrivals) != len(waiting) - len(later):
            raise InvariantError("the queue's count of the background does not match its sequences")
        tokens, later_tokens = (sum(map(self._tokens_of, found)) for found in (waiting, later))
        if (self.num_tokens, self.background_tokens) != (tokens - later_tokens, later_tokens):
            raise InvariantError("the queue's token count does not match its sequences")

    def parked_leaders(self) -> Iterator[RequestId]:
        """Leaders that somebody waits for."""
        return iter(self._parked)

    @staticmethod
    def _tokens_of(seq: Sequence) -> int:
        return seq.num_prompt if seq.leader is None else 0

    def _line_of(self, seq: Sequence) -> FairLine:
        return self.background if seq.is_background else self.fresh

    def _enter(self, seq: Sequence) -> None:
        if seq.is_background:
            self.num_background += 1
            self.background_tokens += self._tokens_of(seq)
            return
        self._arrivals[seq.request_id] = seq.life.arrival_s
        self.num_tokens += self._tokens_of(seq)
        seq.account.num_waiting += 1

    def _join_or_park(self, seq: Sequence, now_s: float) -> None:
        leader = seq.leader
        is_behind = leader is not None and leader.num_valid < seq.num_prompt - 1
        if leader is None or not is_behind or leader.state is SequenceState.FINISHED:
            self._join(seq, now_s)
            return
        self._parked.setdefault(leader.request_id, []).append(seq)
        self.num_parked += 1
        self._since[seq.request_id] = (now_s, None)

    def _join(self, seq: Sequence, now_s: float) -> None:
        self.clock.advance(now_s)
        self._line_of(seq).add(seq)
        self._num_moved += _is_moved(seq)
        self._since[seq.request_id] = (now_s, self.clock.snapshot())

    def _unpark(self, seq: Sequence) -> None:
        if seq.leader is None:
            raise InvariantError(f"request {seq.request_id!r} waits for a leader that it does not have")
        name = seq.leader.request_id
        self._parked[name].remove(seq)
        self.num_parked -= 1
        if not self._parked[name]:
            del self._parked[name]


def _rank(seq: Sequence) -> Rank:
    return seq.rank


def _is_moved(seq: Sequence) -> bool:
    return bool(seq.request.priority or seq.request.terms.tenant.priority)
