"""Rows whose hidden states are pooled into one vector: a program without the head, and sums over chunks.

A mean is a sum of float64 values, token after token in the order of positions, carried in the slot from chunk
to chunk: the same bits however the prompt was cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.base.step import Row, RowResult, SlotBegin
from headrace.base.tasks import Pooling
from headrace.compute.ops.api import F32, ForwardContext, Program
from headrace.compute.runner.passes import Piece

BROKEN = "the model gave NaN or infinite hidden states for this request"


@dataclass(slots=True)
class _Pool:
    """One slot's pooling so far."""

    kind: Pooling
    num_prompt: int
    total: NDArray[np.float64] | None = None


class HiddenPass:
    """Computes rows that want hidden states.

    Args:
        program: gives hidden states [S, E]. Made at the start: a step must not wait for it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._pools: dict[int, _Pool] = {}

    def begin(self, begin: SlotBegin) -> None:
        """A sequence enters a slot; what was summed there before is gone."""
        slot, task = int(begin.slot), begin.request.task
        self._pools.pop(slot, None)
        if isinstance(task, Pooling):
            self._pools[slot] = _Pool(task, len(begin.request.prompt_ids))

    def pieces(self, rows: Sequence[Row]) -> list[Piece]:
        """One piece per row; a mean wants the hidden state of every token, else that of the prompt's last."""
        made: list[Piece] = []
        for i, row in enumerate(rows):
            pool = self._pools[int(row.slot)]
            is_last = row.start + row.count == pool.num_prompt
            is_mean = pool.kind is Pooling.MEAN
            made.append(Piece(i, int(row.slot), row.start, row.count, int(is_last), reports=is_mean))
        return made

    def run(self, context: ForwardContext) -> F32:
        """Hidden states [S, E] of the wanted tokens, valid until the next run."""
        return self._program.run(context)

    def take(self, rows: Sequence[Row], pieces: Sequence[Piece], hidden: F32) -> list[RowResult]:
        """Results of the rows: the pooled vector with the last row of a prompt."""
        results: list[RowResult] = []
        first = 0
        for row, piece in zip(rows, pieces, strict=True):
            states = hidden[first : first + piece.logits]
            first += piece.logits
            results.append(self._pool(row, piece, states))
        return results

    def _pool(self, row: Row, piece: Piece, states: F32) -> RowResult:
        pool = self._pools[piece.slot]
        if not np.isfinite(states).all():
            return RowResult(slot=row.slot, lease=row.lease, error=BROKEN)
        if pool.kind is Pooling.MEAN:
            if pool.total is None:
                pool.total = np.zeros(states.shape[1], np.float64)
            for state in states:
                pool.total += state
        if not piece.draws:
            return RowResult(slot=row.slot, lease=row.lease)
        vector = states[-1] if pool.total is None else pool.total / pool.num_prompt
        pooled = np.ascontiguousarray(vector, "<f4").tobytes()
        return RowResult(slot=row.slot, lease=row.lease, pooled=pooled)
