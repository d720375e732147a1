"""The invariants that span scheduler, queue and ledger, checked from scratch."""

from collections.abc import Iterable, Mapping

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.batch import Batch
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster
from headrace.host.sched.sequence import Sequence, SequenceState, WaitReason


def check_sequences(
    sequences: Mapping[RequestId, Sequence], queue: WaitQueue, roster: Roster, ledger: KVLedger
) -> None:
    """Ledger, queue and roster are sound; everybody waits or runs, and holds blocks only while running.

    Raises:
        InvariantError: names the sequence.
    """
    ledger.check()
    queue.check()
    roster.check()
    for name, seq in sequences.items():
        is_running = seq.state is SequenceState.RUNNING
        if seq.state is SequenceState.FINISHED or is_running != ledger.is_open(name):
            raise InvariantError(f"request {name!r} is {seq.state.name} with the wrong block table")
        if is_running and seq.num_computed > ledger.block_size * ledger.num_blocks_of(name):
            raise InvariantError(f"request {name!r} computed positions without blocks")
    if len(sequences) != queue.num_total + len(roster.running):
        raise InvariantError("a sequence neither waits nor runs")
    _check_accounts(sequences)
    for leader in queue.parked_leaders():
        if leader not in sequences:
            raise InvariantError(f"siblings wait for {leader!r}, which is gone")


def _check_accounts(sequences: Mapping[RequestId, Sequence]) -> None:
    for account in {seq.account for seq in sequences.values()}:
        own = [s for s in sequences.values() if s.account is account]
        running = sum(s.state is SequenceState.RUNNING for s in own)
        later = sum(s.state is SequenceState.RUNNING and s.is_background for s in own)
        fresh = [s for s in own if s.state is SequenceState.WAITING and s.life.num_preempted == 0]
        waiting = sum(not s.is_background for s in fresh)
        counted = account.num_running, account.num_background, account.num_waiting
        if (running, later, waiting) != counted:
            raise InvariantError(f"the account of {account.tenant.name!r} counts wrong")


def check_batches(batches: Iterable[Batch], roster: Roster, ledger: KVLedger, limits: ScheduleLimits) -> None:
    """Each step keeps the token budget, has one row per slot, and writes no shared or published block.

    Raises:
        InvariantError: names the step or the block.
    """
    for batch in batches:
        _check_batch(batch, roster, ledger, limits)


def _check_batch(batch: Batch, roster: Roster, ledger: KVLedger, limits: ScheduleLimits) -> None:
    rows = batch.rows.values()
    total, budget = sum(r.count for r in rows), limits.max_num_batched_tokens
    is_alone = len(rows) == 1 and not limits.chunked_prefill
    if (total > budget and not is_alone) or len({r.slot for r in rows}) != len(rows):
        raise InvariantError(f"step {batch.step}: {total} tokens of {budget}, or two rows in one slot")
    for lease, row in batch.rows.items():
        if lease in roster.by_lease:
            ledger.check_writable(batch.owners[lease], row.start, row.start + row.count)


def check_no_stall(
    reason: WaitReason | None,
    planned: Mapping[int, Batch],
    queue: WaitQueue,
    roster: Roster,
    ledger: KVLedger,
) -> None:
    """No row was planned: nobody could run.

    Raises:
        InvariantError: somebody could have.
    """
    if planned:
        return  # results are on their way
    waits = bool(queue.fresh or queue.background or queue.returning or queue.num_parked)
    if roster.running or (waits and reason not in {WaitReason.WINDOW, WaitReason.ALLOWANCE}):
        raise InvariantError(
            f"stalled: {len(roster.running)} running, {queue.num_total} waiting, "
            f"no row planned (reason {reason}), {ledger.available_blocks} blocks available"
        )
