"""Those who run: slots, leases, and the order in which they are served and preempted."""

from bisect import bisect_left, insort
from collections.abc import Collection

from headrace.base.errors import InvariantError
from headrace.base.ids import SlotId
from headrace.host.sched.fair.account import Account
from headrace.host.sched.fair.rank import Rank
from headrace.host.sched.sequence import Sequence, SequenceState


class Roster:
    """Running sequences, best rank first.

    Args:
        num_slots: sequences that run together.
        most_background: how many of them may be of the background.
    """

    def __init__(self, num_slots: int, most_background: int) -> None:
        self.num_slots = num_slots
        self.num_background = 0
        self.running: list[Sequence] = []
        self.by_lease: dict[int, Sequence] = {}
        self.ends: list[SlotId] = []
        """Slots left since the last plan."""
        self._finished: list[tuple[SlotId, int]] = []
        self.num_changes = 0
        """How often a sequence entered, left or joined again."""
        self.num_bounded = 0
        """Running sequences of tenants that may hold a part of the KV pool only."""
        self._most_background = most_background
        self._free = [SlotId(i) for i in reversed(range(num_slots))]
        self._next_lease = 0

    def has_slot(self, seq: Sequence) -> bool:
        """Whether this sequence, or one of its kind, can enter."""
        is_kept_out = seq.is_background and self.num_background >= self._most_background
        return bool(self._free) and not is_kept_out

    @property
    def num_free(self) -> int:
        """Slots that are free, or given up by the background when somebody needs them."""
        return len(self._free) + self.num_background

    @property
    def foreground(self) -> list[Sequence]:
        """Those whose answers somebody waits for: the best ranks."""
        return (
            self.running[: len(self.running) - self.num_background] if self.num_background else self.running
        )

    @property
    def background(self) -> list[Sequence]:
        """The others."""
        return self.running[len(self.running) - self.num_background :]

    def enter(self, seq: Sequence, num_cached: int) -> SlotId:
        """Give the sequence a slot and a new lease; its first `num_cached` positions have their KV."""
        slot = self._free.pop()
        seq.state, seq.slot, seq.lease = SequenceState.RUNNING, slot, self._next_lease
        seq.rejoins = False
        seq.num_computed = seq.num_valid = num_cached
        self._next_lease += 1
        self.num_changes += 1
        self.by_lease[seq.lease] = seq
        seq.account.num_running += 1
        seq.account.num_background += seq.is_background
        self.num_bounded += seq.has_kv_bound
        self.num_background += seq.is_background
        insort(self.running, seq, key=_rank)
        return slot

    def leave(self, seq: Sequence, *, is_whole: bool = False) -> None:
        """Take the slot back; results under the old lease no longer count. `is_whole`: its answer is."""
        i = bisect_left(self.running, seq.rank, key=_rank)
        if seq.slot is None or i >= len(self.running) or self.running[i] is not seq:
            raise InvariantError(f"request {seq.request_id!r} leaves a slot that it does not have")
        del self.running[i]
        del self.by_lease[seq.lease]
        self.num_changes += 1
        seq.account.num_running -= 1
        seq.account.num_background -= seq.is_background
        self.num_bounded -= seq.has_kv_bound
        self.num_background -= seq.is_background
        self.ends.append(seq.slot)
        if is_whole:
            self._finished.append((seq.slot, len(seq.tokens)))
        self._free.append(seq.slot)
        seq.slot, seq.lease = None, -1
        seq.num_computed = seq.num_valid = seq.pending = 0
        seq.num_drafts = seq.num_held = seq.num_late = 0
        if seq.track is not None:
            seq.track.leave()
        seq.offer = None

    def renew(self, seq: Sequence) -> None:
        """The runner must learn tokens and blocks of a sequence anew: it leaves its slot and joins again."""
        if seq.slot is None:
            raise InvariantError(f"request {seq.request_id!r} has no slot to join again")
        del self.by_lease[seq.lease]
        self.num_changes += 1
        self.ends.append(seq.slot)
        seq.lease, seq.rejoins = self._next_lease, True
        self._next_lease += 1
        self.by_lease[seq.lease] = seq

    def take_ends(self) -> tuple[SlotId, ...]:
        """Slots left since the last call."""
        ends, self.ends = tuple(dict.fromkeys(self.ends)), []
        return ends

    def take_finished(self) -> tuple[tuple[SlotId, int], ...]:
        """Of those, the ones that were left with a whole answer: slots, and tokens of prompt and answer."""
        finished, self._finished = tuple(self._finished), []
        return finished

    def victim(self, seq: Sequence, planned: Collection[int], *, own: bool = False) -> Sequence | None:
        """Whom to preempt so that `seq` can go on: the worst rank that is not part of this step yet.

        Never one that ranks before `seq`, so the best-ranked sequence is never evicted and always finishes;
        the best-ranked of a tenant neither, when `own` looks among its sequences only.
        """
        for other in reversed(self.running):
            if other.rank <= seq.rank:
                return None
            if other.lease not in planned and (not own or other.account is seq.account):
                return other
        return None

    def last_background(self, account: Account | None = None) -> Sequence | None:
        """Who of the background (of this account) gives way first; None: nobody."""
        own = (s for s in reversed(self.background) if account is None or s.account is account)
        return next(own, None)

    def check(self) -> None:
        """One slot and one lease per running sequence.

        Raises:
            InvariantError: names what does not add up.
        """
        ranks = [s.rank for s in self.running]
        slots = [s.slot for s in self.running]
        if ranks != sorted(set(ranks)):
            raise InvariantError(f"running sequences are out of order: {ranks}")
        if [s.is_background for s in self.running] != [
            i >= len(self.foreground) for i in range(len(self.running))
        ]:
            raise InvariantError(f"the background is not {self.num_background} last ranks")
        if None in slots or len(set(slots) | set(self._free)) != self.num_slots:
            raise InvariantError(f"slots {slots} and free {self._free} are not all {self.num_slots} slots")
        if len(slots) + len(self._free) != self.num_slots:
            raise InvariantError("a slot has two owners")
        if {s.lease for s in self.running} != set(self.by_lease):
            raise InvariantError("leases and running sequences differ")


def is_held_up(running: Collection[Sequence]) -> bool:
    """Whether beams wait for others of their searches, and nobody's result is on the way."""
    waits = any(seq.offer is not None for seq in running)
    return waits and not any(seq.offer is None and seq.num_missing <= 0 for seq in running)


def _rank(seq: Sequence) -> Rank:
    return seq.rank
