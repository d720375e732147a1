"""The scheduler in numbers."""

from dataclasses import dataclass

from headrace.host.kv.ledger import KVLedger
from headrace.host.kv.prefix import PrefixStats
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """State now (first six) and counts since start."""

    waiting: int
    running: int
    queued_tokens: int
    """Prompt tokens of sequences that have not run yet."""
    blocks_free: int
    blocks_held: int
    blocks_cached: int
    """Held by nobody, still usable for prefix hits; free + held + cached is the pool."""
    prefix: PrefixStats
    preemptions: int
    steps: int
    slot_steps: int
    """Rows run."""
    wasted_slot_steps: int
    """Per step, slots that ran no row although a sequence waited to run; the cost of a batching policy."""
    late_results: int
    """Row results that came after their sequence had left its slot, and were ignored."""


def take_stats(queue: WaitQueue, roster: Roster, ledger: KVLedger, **counts: int) -> SchedulerStats:
    """The state now; `counts` are the others."""
    return SchedulerStats(
        waiting=queue.num_total,
        running=len(roster.running),
        queued_tokens=queue.num_tokens + queue.background_tokens,
        blocks_free=ledger.free_blocks,
        blocks_held=ledger.held_blocks,
        blocks_cached=ledger.cached_blocks,
        prefix=ledger.prefix_stats(),
        **counts,
    )
