"""A moment of the scheduler, for people to look at."""

from headrace.base.messages import Picture, RunningRow
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.roster import Roster
from headrace.host.sched.sequence import Sequence


def take_picture(roster: Roster, ledger: KVLedger, step: int, now_s: float) -> Picture:
    """Who runs, and what the blocks are; the cost is linear in blocks and running sequences."""
    rows = sorted((_row(seq, now_s) for seq in roster.running), key=lambda row: row.slot)
    return Picture(
        ask_id=0, step=step, num_slots=roster.num_slots, rows=tuple(rows), blocks=ledger.block_states()
    )


def _row(seq: Sequence, now_s: float) -> RunningRow:
    return RunningRow(
        request_id=seq.request_id,
        slot=-1 if seq.slot is None else int(seq.slot),
        prompt_tokens=seq.num_prompt,
        computed_tokens=seq.num_valid,
        cached_tokens=seq.life.cached_tokens,
        output_tokens=seq.num_output,
        max_tokens=seq.max_tokens,
        age_s=now_s - seq.life.arrival_s,
    )
