"""Fills a step: rows for those who run, then for those who wait; then, in what is left, for the background.

Whoever somebody waits for is planned as if the background was not there: it gives up slots, blocks and its
tenant's share to each of them, and joins only in a step that none of them waits through.

Some row is found in every step in which a sequence could run: the best-ranked running sequence can always get
its blocks (everybody else can be preempted, and alone it fits the pool, or it would not have been let in).
"""

from collections.abc import Callable

from headrace.base.step import StepResult
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.allot import all_decode, allot, with_drafts
from headrace.host.sched.batch import Batch
from headrace.host.sched.cost import StepCost
from headrace.host.sched.drafts.depth import Depth
from headrace.host.sched.entry.entrance import Entrance, shortcut, slot_begin
from headrace.host.sched.fair.background import BackgroundLine
from headrace.host.sched.fair.share import is_within_share
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster, is_held_up
from headrace.host.sched.sequence import Sequence, SequenceState, WaitReason
from headrace.host.sched.steady.repeat import Repeat
from headrace.host.sched.view import BatchPolicy, BatchView

MAX_BYPASSES = 16
"""How many may overtake a sequence that does not fit while it is first in the queue; then all wait for it."""
BYPASS_WINDOW = 8
"""How far behind the first is looked for one that fits."""


class Planner:
    """Chooses the rows of one step after the other.

    Works on the scheduler's ledger and queue, and owns the roster; the scheduler creates it and is its only
    user.
    """

    def __init__(
        self,
        ledger: KVLedger,
        policy: BatchPolicy,
        limits: ScheduleLimits,
        queue: WaitQueue,
        drafts: Depth,
        clock_s: Callable[[], float],
    ) -> None:
        self.roster = Roster(limits.max_num_seqs, limits.max_background_seqs)
        self.cost = StepCost()
        self.repeat = Repeat(ledger, self.roster)
        self.drafts = drafts
        self.opens_at_s: float | None = None
        """When the policy's decision changes without an event."""
        self.num_preempted = 0
        self._ledger = ledger
        self._policy = policy
        self._limits = limits
        self._queue = queue
        self.entrance = Entrance(ledger, limits, queue, self.roster, self.cost, clock_s)
        self._was_prefill_turn = False

    def fill(self, batch: Batch, now_s: float) -> WaitReason | None:
        """Add rows to an empty batch; returns why the first of those who still wait had to."""
        if self.drafts.is_on:
            self.drafts.choose(self.roster.running, batch.left)
        reason: WaitReason | None = None
        is_prefill_turn = self._is_prefill_turn()
        if is_prefill_turn:
            reason = self._admit_waiting(batch, now_s)
        if not batch.rows:
            is_prefill_turn = False
            if self.drafts.is_on or not self.repeat.extend(batch):
                self._extend_running(self.roster.foreground, batch, now_s)
            reason = self._admit_waiting(batch, now_s)
        while not batch.rows and self._give_way(self.roster.foreground, batch, now_s):
            reason = self._admit_waiting(batch, now_s)
        self._was_prefill_turn = is_prefill_turn
        if self.roster.num_background or self._queue.num_background:
            reason = self._fill_background(batch, now_s, reason)
        return reason

    def _fill_background(self, batch: Batch, now_s: float, reason: WaitReason | None) -> WaitReason | None:
        """Rows for the background; `reason` is why the first of the others waits, and is kept."""
        self._extend_running(self.roster.background, batch, now_s)
        found = self._admit_background(batch, now_s, reason)
        while not batch.rows and self._give_way(self.roster.background, batch, now_s):
            found = self._admit_background(batch, now_s, reason)
        return reason or found

    # ---- those who run ----

    def _extend_running(self, running: list[Sequence], batch: Batch, now_s: float) -> None:
        """Allot tokens, then reserve in rank order; tokens of a sequence without blocks go to others."""
        if not self.roster.num_bounded and all_decode(running, batch.left):
            self._extend_decoders(running, batch, now_s)
            return
        while batch.left > 0:
            rest = [
                s
                for s in running
                if s.state is SequenceState.RUNNING
                and s.lease not in batch.rows
                and s.lease not in batch.notes.held
            ]
            failed = False
            for seq, count in allot(rest, batch, self.cost, self._limits, self._ledger.block_size):
                if seq.state is not SequenceState.RUNNING:
                    continue  # preempted for one before it in this very step
                if not self._extend(seq, count, batch, now_s):
                    failed = True
            if not failed:
                return

    def _extend_decoders(self, running: list[Sequence], batch: Batch, now_s: float) -> None:
        """One token for everybody: what the loop over `allot` does when nobody wants anything else.

        A sequence finds no blocks and nobody to preempt only when it is the last, so none is left to try.
        """
        for seq in tuple(running):
            if seq.state is not SequenceState.RUNNING:
                continue  # preempted for one before it in this very step
            grant = self._ledger.reserve(seq.request_id, seq.num_computed, seq.num_computed + 1)
            if grant is None:
                self._extend(seq, 1, batch, now_s)
            else:
                batch.add_decode(seq, grant)

    def _extend(self, seq: Sequence, count: int, batch: Batch, now_s: float) -> bool:
        start = seq.num_computed
        if count > seq.num_missing:
            count = with_drafts(seq, count, self.roster.running, self._ledger)
        if seq.has_kv_bound and not self._stay_within_share(seq, count, batch, now_s):
            batch.notes.held[seq.lease] = WaitReason.TENANT
            return False
        grant = self._ledger.reserve(seq.request_id, start, start + count)
        if grant is None and count > seq.num_missing:  # drafts are not worth a preemption
            count = seq.num_missing
            grant = self._ledger.reserve(seq.request_id, start, start + count)
        while grant is None:
            victim = self.roster.victim(seq, batch.rows)
            if victim is None:
                batch.notes.held[seq.lease] = WaitReason.BLOCKS
                return False
            self._preempt(victim, batch, now_s)
            batch.num_preempted += not victim.is_background
            grant = self._ledger.reserve(seq.request_id, start, start + count)
        batch.add(seq, count, grant, slot_begin(seq, self._ledger) if seq.rejoins else None)
        seq.rejoins = False
        return True

    def _give_way(self, running: list[Sequence], batch: Batch, now_s: float) -> bool:
        """Beams that wait for others of their searches hold all there is: the worst rank gives its own up.

        The best-ranked search fits the pool, so it gets all its beams in at last.
        """
        if not (self._queue.returning and is_held_up(running)):
            return False
        self._preempt(running[-1], batch, now_s)
        batch.num_gave_way = 0  # so that the others of its search may take what it gave up
        return True

    def _stay_within_share(self, seq: Sequence, count: int, batch: Batch, now_s: float) -> bool:
        """Make room for `count` more tokens within the tenant's part of the pool, at its own cost.

        The best-ranked of a tenant alone fits its part, or it would not have been let in: so one goes on.
        """
        while not is_within_share(seq, count, self.roster.running, self._ledger):
            victim = self.roster.victim(seq, batch.rows, own=True)
            if victim is None:
                return False
            self._preempt(victim, batch, now_s)
        return True

    def _preempt(self, seq: Sequence, batch: Batch, now_s: float) -> None:
        """Give up the blocks, keep the tokens: they are computed again when it returns."""
        batch.num_gave_way += seq.is_background
        self._ledger.close(seq.request_id)
        seq.times.lose(now_s, seq.num_valid)
        self.roster.leave(seq)
        seq.state = SequenceState.WAITING
        seq.life.num_preempted += 1
        self.num_preempted += 1
        self._queue.push_preempted(seq, now_s)

    # ---- those who wait ----

    def _is_prefill_turn(self) -> bool:
        """Whether whole prompts get a step of their own: every other step, when the first does not fit.

        Only without chunked prefill; otherwise decoding would keep a long prompt out for ever.
        """
        running, returning = self.roster.foreground, self._queue.returning
        if self._limits.chunked_prefill or self._was_prefill_turn or not running:
            return False
        first = returning[0] if returning else self._queue.fresh.pick()
        if first is None or first.is_background:
            return False
        _, cached, _ = shortcut(first, self._ledger)
        beside = self._limits.max_num_batched_tokens - len(running)
        return len(first.tokens) - cached > beside

    def _admit_waiting(self, batch: Batch, now_s: float) -> WaitReason | None:
        queue = self._queue
        self.opens_at_s = None
        if batch.num_preempted:  # the blocks just freed are spoken for
            return WaitReason.BLOCKS
        for seq in tuple(queue.returning):
            if seq.is_background:
                break
            reason = self._admit_before_background(seq, batch, now_s)
            if reason not in {None, WaitReason.TENANT}:
                return reason
        if queue.num_waiting == 0:
            return None
        gate = self._policy.gate(_view(queue, self.roster, self.entrance.num_admitted, now_s))
        self.opens_at_s = gate.opens_at_s
        if queue.fresh and not self.roster.num_free:  # who of all tenants is next need not be found out
            return WaitReason.SLOTS if gate.num_admit > 0 else WaitReason.WINDOW
        return self._admit_fresh(batch, now_s, gate.num_admit)

    def _admit_fresh(self, batch: Batch, now_s: float, num_admit: int) -> WaitReason | None:
        """Admit in order; one that does not fit may be overtaken by a bounded number of others.

        One whose tenant has all it may have keeps back its tenant only.
        """
        line = self._queue.fresh
        passed: list[Sequence] = []
        barred: set[str] = set()
        while (seq := line.pick(passed, barred)) is not None:
            if num_admit <= 0:
                return WaitReason.WINDOW if self.roster.has_slot(seq) else WaitReason.SLOTS
            reason = self._admit_before_background(seq, batch, now_s)
            if reason is None:
                num_admit -= 1
                if passed:
                    passed[0].life.num_bypassed += 1
            elif reason is WaitReason.TENANT:
                barred.add(seq.account.tenant.name)
            elif reason is WaitReason.BLOCKS:
                passed.append(seq)
            else:
                return WaitReason.BLOCKS if passed else reason
            if passed and (len(passed) > BYPASS_WINDOW or passed[0].life.num_bypassed >= MAX_BYPASSES):
                return WaitReason.BLOCKS
        if passed:
            return WaitReason.BLOCKS
        return WaitReason.TENANT if barred else None

    def _admit_background(self, batch: Batch, now_s: float, others: WaitReason | None) -> WaitReason | None:
        """Admit those of the background whose tenants wait for nothing else; returns why the first may not.

        Nobody joins in a step that another waits through (`others` says why), or that one had to leave.
        """
        queue = self._queue
        if others not in {None, WaitReason.TENANT} or batch.num_preempted or batch.num_gave_way:
            return others or WaitReason.BLOCKS
        line = BackgroundLine(queue, now_s)
        while (seq := line.pick()) is not None:
            reason = self.entrance.admit(seq, batch, now_s)
            if reason is WaitReason.TENANT:
                line.bar(seq, reason)
            elif reason is not None:
                return reason
        if line.opens_at_s is not None:
            self.opens_at_s = min(line.opens_at_s, self.opens_at_s or line.opens_at_s)
        return line.reason

    def _admit_before_background(self, seq: Sequence, batch: Batch, now_s: float) -> WaitReason | None:
        """`Entrance.admit`; what of the background is in the way leaves, the worst rank first."""
        while True:
            reason = self.entrance.admit(seq, batch, now_s)
            if reason in {None, WaitReason.TOKENS}:
                return reason
            victim = self.roster.last_background(seq.account if reason is WaitReason.TENANT else None)
            if victim is None:
                return reason
            self._preempt(victim, batch, now_s)


def learn(planner: Planner, batch: Batch, result: StepResult) -> None:
    """Let a planner learn from a step's time. Drafts beside a prompt cost about what its tokens do."""
    planner.entrance.rate.pass_time(result.seconds)
    if batch.prefill_tokens:
        if planner.drafts.is_on:
            planner.drafts.pass_by(result)
        planner.cost.observe(result.seconds, batch.prefill_tokens + batch.num_drafts, batch.num_decodes)
        return
    plain_s = result.seconds
    if planner.drafts.is_on:
        planned = batch.num_drafts, batch.num_late
        plain_s = planner.drafts.observe(batch.num_decodes, planned, result, batch.notes.host_s)
    planner.cost.observe(plain_s, 0, batch.num_decodes)


def _view(queue: WaitQueue, roster: Roster, num_admitted: int, now_s: float) -> BatchView:
    """What policies see: the background is no part of it."""
    return BatchView(
        now_s=now_s,
        num_running=len(roster.foreground),
        num_preempted=sum(not seq.is_background for seq in queue.returning),
        num_waiting=queue.num_waiting,
        num_admitted=num_admitted,
        oldest_arrival_s=queue.oldest_arrival_s,
        max_num_seqs=roster.num_slots,
    )
