"""Fills a step: rows for those who run, then for those who wait.

Some row is found in every step in which a sequence could run: the best-ranked running sequence can always get
its blocks (everybody else can be preempted, and alone it fits the pool, or it would not have been let in).
"""

from headrace.base.errors import InvariantError
from headrace.base.step import SlotBegin
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.admission import AdmissionRate, outstanding_blocks, promised_blocks
from headrace.host.sched.allot import all_decode, allot, prefill_left
from headrace.host.sched.batch import Batch
from headrace.host.sched.cost import StepCost
from headrace.host.sched.fair.share import is_within_share, tenant_limit
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster
from headrace.host.sched.sequence import Sequence, SequenceState, WaitReason
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
    ) -> None:
        self.roster = Roster(limits.max_num_seqs)
        self.cost = StepCost()
        self.rate = AdmissionRate()
        self.opens_at_s: float | None = None
        """When the policy's decision changes without an event."""
        self.num_preempted = 0
        self._ledger = ledger
        self._policy = policy
        self._limits = limits
        self._queue = queue
        self._num_admitted = 0
        self._was_prefill_turn = False

    def fill(self, batch: Batch, now_s: float) -> WaitReason | None:
        """Add rows to an empty batch; returns why the first of those who still wait had to."""
        reason: WaitReason | None = None
        is_prefill_turn = self._is_prefill_turn()
        if is_prefill_turn:
            reason = self._admit_waiting(batch, now_s)
        if not batch.rows:
            is_prefill_turn = False
            self._extend_running(batch, now_s)
            reason = self._admit_waiting(batch, now_s)
        while not batch.rows and self._give_way(now_s):
            reason = self._admit_waiting(batch, now_s)
        self._was_prefill_turn = is_prefill_turn
        return reason

    # ---- those who run ----

    def _extend_running(self, batch: Batch, now_s: float) -> None:
        """Allot tokens, then reserve in rank order; tokens of a sequence without blocks go to others."""
        if not self.roster.num_bounded and all_decode(self.roster.running, batch.left):
            self._extend_decoders(batch, now_s)
            return
        without_blocks: set[int] = set()
        while batch.left > 0:
            rest = [
                s for s in self.roster.running if s.lease not in batch.rows and s.lease not in without_blocks
            ]
            failed = False
            for seq, count in allot(rest, batch, self.cost, self._limits, self._ledger.block_size):
                if seq.state is not SequenceState.RUNNING:
                    continue  # preempted for one before it in this very step
                if not self._extend(seq, count, batch, now_s):
                    without_blocks.add(seq.lease)
                    failed = True
            if not failed:
                return

    def _extend_decoders(self, batch: Batch, now_s: float) -> None:
        """One token for everybody: what the loop over `allot` does when nobody wants anything else.

        A sequence finds no blocks and nobody to preempt only when it is the last, so none is left to try.
        """
        for seq in tuple(self.roster.running):
            if seq.state is not SequenceState.RUNNING:
                continue  # preempted for one before it in this very step
            grant = self._ledger.reserve(seq.request_id, seq.num_computed, seq.num_computed + 1)
            if grant is None:
                self._extend(seq, 1, batch, now_s)
            else:
                batch.add_decode(seq, grant)

    def _extend(self, seq: Sequence, count: int, batch: Batch, now_s: float) -> bool:
        start = seq.num_computed
        if seq.has_kv_bound and not self._stay_within_share(seq, count, batch, now_s):
            return False
        grant = self._ledger.reserve(seq.request_id, start, start + count)
        if grant is None and count > seq.num_missing:  # drafts are not worth a preemption
            count = seq.num_missing
            grant = self._ledger.reserve(seq.request_id, start, start + count)
        while grant is None:
            victim = self.roster.victim(seq, batch.rows)
            if victim is None:
                return False
            self._preempt(victim, now_s)
            batch.num_preempted += 1
            grant = self._ledger.reserve(seq.request_id, start, start + count)
        batch.add(seq, count, grant, _slot_begin(seq, self._ledger) if seq.rejoins else None)
        seq.rejoins = False
        return True

    def _give_way(self, now_s: float) -> bool:
        """Beams that wait for others of their searches hold all there is: the worst rank gives its own up.

        The best-ranked search fits the pool, so it gets all its beams in at last.
        """
        if not (self._queue.returning and self.roster.is_held_up):
            return False
        self._preempt(self.roster.running[-1], now_s)
        return True

    def _stay_within_share(self, seq: Sequence, count: int, batch: Batch, now_s: float) -> bool:
        """Make room for `count` more tokens within the tenant's part of the pool, at its own cost.

        The best-ranked of a tenant alone fits its part, or it would not have been let in: so one goes on.
        """
        while not is_within_share(seq, count, self.roster.running, self._ledger):
            victim = self.roster.victim(seq, batch.rows, own=True)
            if victim is None:
                return False
            self._preempt(victim, now_s)
        return True

    def _preempt(self, seq: Sequence, now_s: float) -> None:
        """Give up the blocks, keep the tokens: they are computed again when it returns."""
        self._ledger.close(seq.request_id)
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
        if self._limits.chunked_prefill or self._was_prefill_turn or not self.roster.running:
            return False
        first = self._queue.returning[0] if self._queue.returning else self._queue.fresh.pick()
        if first is None:
            return False
        _, cached, _ = self._shortcut(first)
        beside = self._limits.max_num_batched_tokens - len(self.roster.running)
        return len(first.tokens) - cached > beside

    def _admit_waiting(self, batch: Batch, now_s: float) -> WaitReason | None:
        queue = self._queue
        self.opens_at_s = None
        if batch.num_preempted:  # the blocks just freed are spoken for
            return WaitReason.BLOCKS
        for seq in tuple(queue.returning):
            reason = self._admit(seq, batch, now_s)
            if reason not in {None, WaitReason.TENANT}:
                return reason
        if queue.num_waiting == 0:
            return None
        gate = self._policy.gate(_view(queue, self.roster, self._num_admitted, now_s))
        self.opens_at_s = gate.opens_at_s
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
                return WaitReason.WINDOW
            reason = self._admit(seq, batch, now_s)
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

    def _admit(self, seq: Sequence, batch: Batch, now_s: float) -> WaitReason | None:
        """Let one sequence in and plan its first row; else the reason why not, and nothing has changed."""
        if not self.roster.has_slot:
            return WaitReason.SLOTS
        left = prefill_left(batch, batch.num_decodes, self.cost, self._limits, self._ledger.block_size)
        limit = tenant_limit(seq, self.roster.running, self._ledger) if left > 0 else WaitReason.TOKENS
        if limit is not None:
            return limit
        leader, cached, spared = self._shortcut(seq)
        count = len(seq.tokens) - cached
        if self._limits.chunked_prefill:
            count = min(count, left)
        elif count > left and batch.rows:
            return WaitReason.TOKENS
        running = self.roster.running
        if running:
            need = promised_blocks(seq, self._ledger) - spared + outstanding_blocks(running, self._ledger)
            if need > self._ledger.available_blocks:
                return WaitReason.BLOCKS
        self._enter(seq, leader, cached, now_s)
        self._begin(seq, count, batch)
        return None

    def _enter(self, seq: Sequence, leader: Sequence | None, cached: int, now_s: float) -> None:
        is_first = seq.life.num_preempted == 0
        if leader is not None:
            self._ledger.fork(leader.request_id, seq.request_id, seq.chain, cached)
        else:
            cached = self._ledger.open(
                seq.request_id, seq.tokens, seq.chain, max_cached=seq.max_cached, counted=is_first
            )
        self._queue.pop(seq, now_s)
        self.roster.enter(seq, cached)
        if is_first:
            seq.life.first_scheduled_s = now_s
            seq.life.cached_tokens = 0 if leader is not None else cached
            self._num_admitted += 1
            self.rate.note(seq.num_prompt)
            seq.account.give_prompt(seq.num_prompt - cached)

    def _begin(self, seq: Sequence, count: int, batch: Batch) -> None:
        grant = self._ledger.reserve(seq.request_id, seq.num_computed, seq.num_computed + count)
        if grant is None:
            raise InvariantError(
                f"request {seq.request_id!r} was promised blocks that the pool does not have"
            )
        batch.add(seq, count, grant, _slot_begin(seq, self._ledger))

    def _shortcut(self, seq: Sequence) -> tuple[Sequence | None, int, int]:
        """How a sequence that joins now avoids computing all its tokens.

        Returns:
            (leader to fork from or None, tokens that need no computing, blocks that it need not take from the
            pool).
        """
        leader = seq.leader
        if leader is not None and seq.life.num_preempted == 0 and leader.state is SequenceState.RUNNING:
            cached = seq.num_prompt - 1  # the last one is computed again: its logits give the first token
            if leader.num_valid >= cached:
                return leader, cached, cached // self._ledger.block_size
        cached, unheld = self._ledger.probe(seq.tokens, seq.chain, seq.max_cached)
        return None, cached, cached // self._ledger.block_size - unheld


def _view(queue: WaitQueue, roster: Roster, num_admitted: int, now_s: float) -> BatchView:
    return BatchView(
        now_s=now_s,
        num_running=len(roster.running),
        num_preempted=len(queue.returning),
        num_waiting=queue.num_waiting,
        num_admitted=num_admitted,
        oldest_arrival_s=queue.oldest_arrival_s,
        max_num_seqs=roster.num_slots,
    )


def _slot_begin(seq: Sequence, ledger: KVLedger) -> SlotBegin:
    if seq.slot is None:
        raise InvariantError(f"request {seq.request_id!r} has no slot")
    return SlotBegin(
        slot=seq.slot,
        lease=seq.lease,
        request=seq.request,
        token_ids=tuple(seq.tokens),
        blocks=ledger.table(seq.request_id),
    )
