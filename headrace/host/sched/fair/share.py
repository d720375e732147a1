"""Parts of the KV pool: a tenant's running sequences together hold no more than its share.

Blocks that several sequences share count for each of them.
"""

from collections.abc import Collection

from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.admission import outstanding_blocks, promised_blocks, share_blocks
from headrace.host.sched.sequence import Sequence, WaitReason


def tenant_limit(seq: Sequence, running: Collection[Sequence], ledger: KVLedger) -> WaitReason | None:
    """Whether the bounds of a sequence's tenant keep it out of the running ones now."""
    if seq.account.is_full:
        return WaitReason.TENANT
    if not seq.has_kv_bound:
        return None
    return None if keeps_promises(seq, running, ledger) else WaitReason.TENANT


def keeps_promises(seq: Sequence, running: Collection[Sequence], ledger: KVLedger) -> bool:
    """Whether what is promised to a sequence and to the others of its tenant that run is within the part."""
    others = _others(seq, running)
    need = promised_blocks(seq, ledger) + _held(others, ledger) + outstanding_blocks(others, ledger)
    return not others or need <= _most(seq, ledger)


def is_within_share(seq: Sequence, count: int, running: Collection[Sequence], ledger: KVLedger) -> bool:
    """Whether a running sequence may grow by `count` tokens."""
    need = ledger.blocks_for(seq.num_computed + count)
    if not seq.is_beam and need <= ledger.num_blocks_of(seq.request_id):
        return True  # within blocks that it holds already: most decode steps; forks enter unchecked
    return need + _held(_others(seq, running), ledger) <= _most(seq, ledger)


def _others(seq: Sequence, running: Collection[Sequence]) -> list[Sequence]:
    return [s for s in running if s.account is seq.account and s is not seq]


def _held(sequences: Collection[Sequence], ledger: KVLedger) -> int:
    return sum(ledger.num_blocks_of(s.request_id) for s in sequences)


def _most(seq: Sequence, ledger: KVLedger) -> int:
    return share_blocks(seq.request.terms.tenant.kv_share, ledger)
