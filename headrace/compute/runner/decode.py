"""Steps that only continue answers: one token per row, nothing but the drawn token wanted.

Nearly every step of a busy engine is of this kind, and its rows are mostly those of the step before. So what
depends on who runs (slots, sampling parameters, row starts) is gathered when somebody comes or goes, and a
step writes only what changes: tokens, positions, new blocks. Drawn tokens go straight into the next step's
inputs and reach the slots when somebody else needs them there (`forget`). The result is the one of the
general way (`inputs`, `draws`), which takes every other step: prompts, drafts, log-probabilities, penalties,
bans.

After a pass over the weights nothing of Python or numpy is left in the caches, so what counts is how much is
touched: a reduction or a fancy index of numpy takes 10 to 40 microseconds here, a list 3.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.base.ids import SlotId
from headrace.base.step import Row, RowResult
from headrace.compute.ops.api import F32, I32, Backend, ForwardContext, KVPool, SampleBatch, Sampler
from headrace.compute.runner.draws import error_text
from headrace.compute.runner.inputs import RopeRows
from headrace.compute.runner.state import DeviceState

MAX_HELD = 64
"""Steps whose tokens are held before they are written to the slots."""
TABLE_STEP = 8
"""Tables are this many columns wider than needed at most, so that most new blocks find room."""


class Decode:
    """Inputs and results of plain decoding steps.

    Args:
        state: the slots.
        pool: KV memory that goes into the context.
        backend: draws.
        rope_rows: for RoPE kinds whose angles depend on the length; steps are not of this kind then.
    """

    def __init__(
        self, state: DeviceState, pool: KVPool, backend: Backend, rope_rows: RopeRows | None = None
    ) -> None:
        self._state = state
        self._pool = pool
        self._backend = backend
        self._rope_rows = rope_rows
        # Slots and leases of the rows of the step before; none when it was of another kind.
        self._places: list[tuple[SlotId, int]] = []
        self._num_keys = 0
        self._drawn: list[I32] = []
        self._slots: NDArray[np.intp] = np.empty(0, np.intp)
        self._batch: SampleBatch
        self._sampler: Sampler | None = None
        self._context: ForwardContext
        # Positions, and numbers of keys: both grow by one in every step. Their bytes in the steps to come are
        # laid out in advance, used up to `_at`: after a step adding to an array takes 24 us, copying bytes 2.
        self._moving: I32
        self._here = self._ahead = memoryview(bytearray())
        self._at = 0

    @property
    def num_keys(self) -> int:
        """Keys that the rows of the prepared step see, added up."""
        return self._num_keys

    def forget(self) -> None:
        """Slots are about to end, begin or grow in another way: write what is held, then gather anew."""
        self._flush()
        self._places = []

    def _flush(self) -> None:
        """Write held tokens to the slots; the last of them stand where the keys of the last step end."""
        if self._drawn:
            state, ends = self._state, self._context.key_len
            ages = np.arange(len(self._drawn) - 1, -1, -1)
            state.tokens[self._slots, ends - ages[:, None]] = np.stack(self._drawn)
            state.num_tokens[self._slots] = ends + 1
            self._drawn = []

    def prepare(self, rows: Sequence[Row], repeats: Sequence[int] | None = None) -> ForwardContext | None:
        """The inputs of a step, valid until the next call; None: the step is not of this kind.

        Args:
            rows: of the step.
            repeats: see `StepPlan.repeats`.

        Raises:
            ValueError: a row belongs to another lease than its slot, or the rows are not those of the step
                before.
        """
        if self._rope_rows is not None:
            return None
        if repeats is not None and self._places:
            if len(rows) != len(self._places):
                raise ValueError(f"{len(rows)} rows cannot repeat those of {len(self._places)}")
            return self._go_on(rows, repeats)
        for row in rows:
            if row.count != 1 or not row.sample or row.wants:
                return None
        places, starts = [(row.slot, row.lease) for row in rows], [row.start for row in rows]
        if places != self._places or starts != self._context.key_len.tolist():
            self.forget()
            return self._gather(rows, places, starts)
        return self._go_on(rows, [i for i, row in enumerate(rows) if row.new_blocks or row.swapped])

    def _go_on(self, rows: Sequence[Row], changed: Sequence[int]) -> ForwardContext:
        """The inputs of the step before, one position on; these of the rows bring blocks."""
        for i in changed:
            self._state.update(rows[i])
            self._update_table(i, rows[i])
        context = self._context
        context.token_ids = self._drawn[-1]
        if len(self._drawn) >= MAX_HELD:
            self._flush()
        if self._at == len(self._ahead):
            self._ahead, self._at = _bytes_ahead(self._moving), 0
        end = self._at + len(self._here)
        self._here[:] = self._ahead[self._at : end]
        self._at = end
        self._num_keys += len(rows)
        return context

    def finish(self, rows: Sequence[Row], logits: F32, maxima: F32 | None = None) -> list[RowResult]:
        """Draw, and take the drawn tokens into the slots; `maxima` are those of `Program`."""
        if self._sampler is None:
            self._sampler = self._backend.sampler(self._batch, logits.shape[1])
        tokens, errors = self._sampler(logits, maxima)
        drawn = tokens.tolist()
        if any(codes := errors.tolist()):
            return self._finish_broken(rows, drawn, codes)
        self._drawn.append(tokens)
        return [
            RowResult(slot, lease, (token,)) for (slot, lease), token in zip(self._places, drawn, strict=True)
        ]

    def _gather(
        self, rows: Sequence[Row], places: list[tuple[SlotId, int]], starts: list[int]
    ) -> ForwardContext | None:
        state, count = self._state, len(rows)
        slots = np.array([row.slot for row in rows], np.intp)
        positions = np.array(starts, np.int32)
        if not state.sampling.is_plain(slots) or not np.array_equal(state.num_tokens[slots], positions + 1):
            return None
        for row in rows:
            state.update(row)
        order = np.arange(count + 1, dtype=np.int32)
        self._moving = np.stack([positions, positions + np.int32(1)])
        self._here, self._ahead, self._at = self._moving.data.cast("B"), memoryview(b""), 0
        positions, key_len = self._moving
        self._slots = slots
        self._context = ForwardContext(
            token_ids=state.tokens[slots, positions],
            positions=positions,
            row_of=order[:-1],
            query_start=order,
            key_len=key_len,
            tables=self._gather_tables(),
            rope_rows=positions,
            logit_rows=order[:-1],
            kv=self._pool,
        )
        # The token to draw stands at the position where the keys end, in this step and in all that follow.
        self._batch = state.sampling.plain_batch(slots, key_len)
        self._sampler = None
        self._places = places
        self._num_keys = sum(starts) + count
        return self._context

    def _gather_tables(self) -> I32:
        state = self._state
        widest = int(state.num_blocks[self._slots].max())
        width = min(-(-(widest + 1) // TABLE_STEP) * TABLE_STEP, state.tables.shape[1])
        return np.ascontiguousarray(state.tables[self._slots, :width])

    def _update_table(self, i: int, row: Row) -> None:
        """Carry the changes of a row's table over; a table without room is gathered anew."""
        state, slot, tables = self._state, int(row.slot), self._context.tables
        used = int(state.num_blocks[slot])
        if used > tables.shape[1]:
            self._context.tables = self._gather_tables()
        else:
            tables[i, :used] = state.tables[slot, :used]

    def _finish_broken(
        self, rows: Sequence[Row], drawn: Sequence[int], codes: Sequence[int]
    ) -> list[RowResult]:
        """Rows with an error draw nothing, and the others go on.

        What is held belongs to the steps before, so their end is one short of this step's.
        """
        self._context.key_len -= 1
        self.forget()
        results: list[RowResult] = []
        for row, token, code in zip(rows, drawn, codes, strict=True):
            if code:
                results.append(RowResult(row.slot, row.lease, error=error_text(code)))
            else:
                self._state.append(int(row.slot), (token,))
                results.append(RowResult(row.slot, row.lease, (token,)))
        return results


def _bytes_ahead(moving: I32) -> memoryview:
    """The bytes of an array that grows by one in every step, in the next `MAX_HELD` steps."""
    steps = np.arange(1, MAX_HELD + 1, dtype=np.int32)
    return (moving + steps[:, None, None]).data.cast("B")
