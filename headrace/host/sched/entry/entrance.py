"""Lets one sequence after the other in, or says why not."""

from collections.abc import Callable

from headrace.base.errors import InvariantError
from headrace.base.metrics.timeline import PrefixResult
from headrace.base.step import SlotBegin
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.admission import AdmissionRate, outstanding_blocks, promised_blocks
from headrace.host.sched.allot import prefill_left
from headrace.host.sched.batch import Batch
from headrace.host.sched.cost import StepCost
from headrace.host.sched.fair.share import tenant_limit
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster
from headrace.host.sched.sequence import Sequence, SequenceState, WaitReason

FROM_LEADER = "leader"
"""The outcome of a prefix lookup that found the prompt of the request's first choice."""


class Entrance:
    """The way from the queue into a slot. Shares its parts with the planner, which is its only user.

    Args:
        ledger: opens tables.
        limits: bounds.
        queue: sequences leave it here.
        roster: sequences enter it here.
        cost: measured step costs.
        clock_s: monotonic seconds, to see what looking for a prefix takes.

    Attributes:
        rate: how fast the queue drains.
        num_admitted: first admissions since start, without the background.
    """

    def __init__(
        self,
        ledger: KVLedger,
        limits: ScheduleLimits,
        queue: WaitQueue,
        roster: Roster,
        cost: StepCost,
        clock_s: Callable[[], float],
    ) -> None:
        self.rate = AdmissionRate()
        self.num_admitted = 0
        self._ledger = ledger
        self._limits = limits
        self._queue = queue
        self._roster = roster
        self._cost = cost
        self._clock_s = clock_s

    def admit(self, seq: Sequence, batch: Batch, now_s: float) -> WaitReason | None:
        """Let one sequence in and plan its first row; else the reason why not, and nothing has changed."""
        if not self._roster.has_slot(seq):
            return WaitReason.SLOTS
        left = prefill_left(
            batch,
            batch.num_decodes,
            self._cost,
            self._limits,
            self._ledger.block_size,
            is_background=seq.is_background,
        )
        limit = tenant_limit(seq, self._roster.running, self._ledger) if left > 0 else WaitReason.TOKENS
        if limit is not None:
            return limit
        began_s = self._clock_s()
        leader, cached, spared = shortcut(seq, self._ledger)
        count = len(seq.tokens) - cached
        if self._limits.chunked_prefill or seq.is_background:
            count = min(count, left)
        elif count > left and batch.rows:
            return WaitReason.TOKENS
        if self._roster.running:
            running = self._roster.running if seq.is_background else self._roster.foreground
            need = promised_blocks(seq, self._ledger) - spared + outstanding_blocks(running, self._ledger)
            if need > self._ledger.available_blocks:
                return WaitReason.BLOCKS
        self._enter(seq, leader, cached, now_s)
        seq.times.enter(now_s, self._clock_s() - began_s)
        self._begin(seq, count, batch)
        return None

    def _enter(self, seq: Sequence, leader: Sequence | None, cached: int, now_s: float) -> None:
        is_first = seq.life.num_preempted == 0
        if leader is not None:
            self._ledger.fork(leader.request_id, seq.request_id, seq.chain, cached)
            found = PrefixResult(outcome=FROM_LEADER, prompt_tokens=seq.num_prompt, cached_tokens=cached)
        else:
            cached = self._ledger.open(
                seq.request_id, seq.tokens, seq.chain, max_cached=seq.max_cached, counted=is_first
            )
            found = self._ledger.lookups.latest
        self._queue.pop(seq, now_s)
        self._roster.enter(seq, cached)
        if is_first:
            self._queue.note_overtaken(seq, now_s)
            seq.life.first_scheduled_s = now_s
            seq.times.prefix = found
            seq.life.cached_tokens = 0 if leader is not None else cached
            self.rate.note(seq.num_prompt)
            seq.account.give_prompt(seq.num_prompt - cached, is_background=seq.is_background)
            if not seq.is_background:
                self.num_admitted += 1
            elif seq.leader is None:  # the door lets it wait, whatever its tenant has spent
                seq.account.spend(seq.num_prompt)

    def _begin(self, seq: Sequence, count: int, batch: Batch) -> None:
        grant = self._ledger.reserve(seq.request_id, seq.num_computed, seq.num_computed + count)
        if grant is None:
            raise InvariantError(
                f"request {seq.request_id!r} was promised blocks that the pool does not have"
            )
        batch.add(seq, count, grant, slot_begin(seq, self._ledger))


def shortcut(seq: Sequence, ledger: KVLedger) -> tuple[Sequence | None, int, int]:
    """How a sequence that joins now avoids computing all its tokens.

    Returns:
        (leader to fork from or None, tokens that need no computing, blocks that it need not take from the
        pool).
    """
    leader = seq.leader
    if leader is not None and seq.life.num_preempted == 0 and leader.state is SequenceState.RUNNING:
        cached = seq.num_prompt - 1  # the last one is computed again: its logits give the first token
        if leader.num_valid >= cached:
            return leader, cached, cached // ledger.block_size
    cached, unheld = ledger.probe(seq.tokens, seq.chain, seq.max_cached)
    return None, cached, cached // ledger.block_size - unheld


def slot_begin(seq: Sequence, ledger: KVLedger) -> SlotBegin:
    """How the runner learns of a sequence that enters a slot."""
    if seq.slot is None:
        raise InvariantError(f"request {seq.request_id!r} has no slot")
    return SlotBegin(
        slot=seq.slot,
        lease=seq.lease,
        request=seq.request,
        token_ids=tuple(seq.tokens),
        blocks=ledger.table(seq.request_id),
    )
