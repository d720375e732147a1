"""Steps that repeat the one before: the same rows, each one position on. Nearly every step of a busy engine.

The general way asks each sequence what it wants and each table for room, and books every second and token by
sequence. Here all that is known from the step before (`crew`), so a step touches of a sequence only what
changes: its tokens and its positions. After a pass over the weights the caches hold nothing of Python, so
what counts is how many objects are touched. What a step leaves behind is what the general way leaves.
"""

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId
from headrace.base.step import Delta, Row, StepResult
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.batch import Batch
from headrace.host.sched.roster import Roster
from headrace.host.sched.steady.crew import Crew


class Repeat:
    """Plans and commits such steps. Shares its parts with planner and scheduler, which are its only users.

    A step is one when nobody entered, left or joined again since the last one was planned, all results are
    in, and the pool has a block for each row that begins one.
    """

    def __init__(self, ledger: KVLedger, roster: Roster) -> None:
        self._ledger = ledger
        self._roster = roster
        self._crew: Crew | None = None
        self._num_changes = -1
        # Number of the last step that was planned here, and those of its rows that bring blocks (None: its
        # rows need not be those of the step before).
        self._step = 0
        self._changed: tuple[int, ...] | None = None

    def extend(self, batch: Batch) -> bool:
        """Add a row for everybody who runs; False: nothing was added, and the general way is to be taken."""
        crew = self._crew = self._ready_crew(batch)
        if crew is None:
            return False
        rows = [
            Row(slot=slot, lease=lease, start=start, count=1)
            for (slot, lease), start in zip(crew.places, crew.starts, strict=True)
        ]
        is_first = crew.age == 0
        changed = range(len(rows)) if is_first else crew.at_block_start()
        for i in changed:
            self._reserve(crew.sequences[i].request_id, rows[i], batch)
        for seq, start in zip(crew.sequences, crew.starts, strict=True):
            seq.num_computed = start + 1
            seq.pending = 1
        batch.rows, batch.owners = {row.lease: row for row in rows}, crew.owners
        batch.num_decodes = len(rows)
        batch.left -= len(rows)
        self._step, self._changed = batch.step, None if is_first else tuple(changed)
        return True

    def repeats_of(self, batch: Batch) -> tuple[int, ...] | None:
        """`StepPlan.repeats` of a planned step."""
        return self._changed if self._is_current(batch) else None

    def commit(self, batch: Batch, result: StepResult, now_s: float) -> list[Delta] | None:
        """Take the result of a step after which everybody goes on; None: nothing is taken of any other."""
        crew = self._crew if self._is_current(batch) else None
        tokens = None if crew is None or result.draft_s else crew.tokens_of(result.rows)
        if crew is None or tokens is None:
            self._crew = None
            return None
        crew.time.book(now_s, result.seconds)
        deltas = crew.advance(tokens, result.rows)
        for i in crew.at_block_start():  # those have just filled one
            seq = crew.sequences[i]
            self._ledger.publish(seq.request_id, seq.tokens, seq.num_valid)
        return deltas

    def forget(self) -> None:
        """Somebody ended: keep nothing of those who ran."""
        self._crew = None

    def _is_current(self, batch: Batch) -> bool:
        """Whether this is the last step that was planned here, and nobody came or went since."""
        return batch.step == self._step and self._roster.num_changes == self._num_changes

    def _ready_crew(self, batch: Batch) -> Crew | None:
        """Those who go on in a step, when the pool has the blocks that they need."""
        roster, crew = self._roster, self._crew
        if self._num_changes != roster.num_changes:
            self._num_changes = roster.num_changes
            return None  # not before the next step: gathering for a single one is not worth it
        num_rows, available = len(roster.running), self._ledger.available_blocks
        if not num_rows or num_rows > batch.left or roster.num_bounded or roster.num_background:
            return None
        if crew is None:
            return Crew.gather(roster.running, self._ledger.block_size) if num_rows <= available else None
        is_in = not crew.sequences[0].pending
        return crew if is_in and len(crew.at_block_start()) <= available else None

    def _reserve(self, owner: RequestId, row: Row, batch: Batch) -> None:
        """Give a row what the ledger changes for it."""
        grant = self._ledger.reserve(owner, row.start, row.start + 1)
        if grant is None:
            raise InvariantError(f"no block for {owner!r}, though the pool had one for each row")
        row.new_blocks, row.swapped = grant.new_blocks, grant.swapped
        batch.moves.extend(grant.moves)
