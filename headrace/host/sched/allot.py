"""Tokens of the next step for those who run: decoding first, then prompts that are under way."""

from collections.abc import Collection, Iterable

from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.admission import outstanding_blocks
from headrace.host.sched.batch import Batch
from headrace.host.sched.cost import StepCost
from headrace.host.sched.fair.share import keeps_promises
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.sequence import Sequence


def prefill_left(
    batch: Batch,
    num_decodes: int,
    cost: StepCost,
    limits: ScheduleLimits,
    smallest: int,
    *,
    is_background: bool = False,
) -> int:
    """Prefill tokens that the step may still take: bounded in time while others decode.

    Those of the background always are: somebody may come while the step runs.
    """
    if is_background:
        room = cost.tokens_within(limits.prefill_step_s, num_decodes, smallest)
        return max(0, min(batch.left, room - batch.prefill_tokens))
    if not limits.chunked_prefill:
        return batch.left
    room = cost.prefill_room(limits.prefill_step_s, num_decodes, smallest)
    return batch.left if room is None else max(0, min(batch.left, room - batch.prefill_tokens))


def all_decode(running: Collection[Sequence], left: int) -> bool:
    """Whether every running sequence wants just the next token of its answer, and `left` tokens suffice.

    Then `allot` gives each of them one token; asking first is cheaper, and nearly every step is like that.
    """
    if len(running) > left:
        return False
    for seq in running:
        known = len(seq.tokens) + seq.pending
        if seq.num_drafts or seq.rejoins or known <= seq.num_prompt:
            return False
        if min(known, seq.max_positions) - seq.num_computed != 1:
            return False
    return True


def allot(
    candidates: Iterable[Sequence], batch: Batch, cost: StepCost, limits: ScheduleLimits, smallest: int
) -> list[tuple[Sequence, int]]:
    """Token counts for sequences that are not in the step yet.

    Args:
        candidates: running sequences, best rank first; all of the background or none.
        batch: the step so far.
        cost: measured step costs.
        limits: bounds.
        smallest: smallest prefill chunk in tokens.

    Returns:
        (sequence, count) in rank order, so that blocks go to the best rank first.
    """
    counts: dict[int, int] = {}
    chosen: list[Sequence] = []
    prompts: list[Sequence] = []
    left = batch.left
    for seq in candidates:
        missing = seq.num_missing
        if missing <= 0:
            continue
        chosen.append(seq)
        if not seq.is_decoding:
            prompts.append(seq)
        elif left > 0:
            drafts = min(seq.num_drafts, seq.max_positions - len(seq.tokens)) if seq.pending == 0 else 0
            counts[seq.lease] = min(missing + max(0, drafts), left)
            left -= counts[seq.lease]
    if prompts and left > 0:
        num_decodes, is_last = batch.num_decodes + len(counts), prompts[0].is_background
        room = prefill_left(batch, num_decodes, cost, limits, smallest, is_background=is_last)
        room = min(left, room)
        for seq in prompts:
            count = min(seq.num_missing, room)
            if count > 0:
                counts[seq.lease] = count
                room -= count
    return [(seq, counts[seq.lease]) for seq in chosen if seq.lease in counts]


def with_drafts(seq: Sequence, count: int, running: Collection[Sequence], ledger: KVLedger) -> int:
    """Tokens of a row that asks for `count`, drafts included; those for which it takes no block too early.

    Wrong drafts keep a block until the answer reaches it. So they take one only where it is among those that
    are promised to the sequence, and where all that is promised to those who run, or to those of its tenant,
    is there: then nobody lacks a block by it that would have been free without drafts.
    """
    start, missing, size = seq.num_computed, seq.num_missing, ledger.block_size
    own = max(ledger.num_blocks_of(seq.request_id), ledger.blocks_for(start + missing)) * size
    if start + count <= own:
        return count
    is_free = outstanding_blocks(tuple(running), ledger) <= ledger.available_blocks
    if is_free and (not seq.has_kv_bound or keeps_promises(seq, running, ledger)):
        return min(count, missing + size)
    return own - start
