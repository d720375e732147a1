"""From pieces of rows to the arrays of a forward pass."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.compute.ops.api import I32, ForwardContext, KVPool
from headrace.compute.runner.passes import Piece
from headrace.compute.runner.state import DeviceState

RopeRows = Callable[[int, I32, int], I32]
"""(slot, positions, prompt length) -> rows of the angle tables."""


class Inputs:
    """Buffers for the largest step, and the gathering of a step's arrays into them.

    Args:
        state: the slots.
        pool: KV memory that goes into the context.
        max_tokens: most tokens of a pass.
        rope_rows: for RoPE kinds whose angles depend on the length; None: rows are positions.
    """

    def __init__(
        self, state: DeviceState, pool: KVPool, max_tokens: int, rope_rows: RopeRows | None = None
    ) -> None:
        self._state = state
        self._pool = pool
        self._rope_rows = rope_rows
        slots, width = state.tables.shape
        self._token_ids = np.zeros(max_tokens, np.int32)
        self._positions = np.zeros(max_tokens, np.int32)
        self._row_of = np.zeros(max_tokens, np.int32)
        self._arange = np.arange(max_tokens, dtype=np.int32)
        self._tables = np.zeros(slots * width, np.int32)

    def gather(self, pieces: Sequence[Piece]) -> ForwardContext:
        """The arrays of a pass; valid until the next call."""
        state = self._state
        slots = np.array([p.slot for p in pieces], np.intp)
        starts = np.array([p.start for p in pieces], np.int32)
        counts = np.array([p.count for p in pieces], np.int32)
        query_start = np.zeros(len(pieces) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        tokens = int(query_start[-1])
        row_of = self._row_of[:tokens]
        row_of[:] = np.repeat(self._arange[: len(pieces)], counts)
        positions = self._positions[:tokens]
        np.add(self._arange[:tokens], (starts - query_start[:-1])[row_of], out=positions)
        token_ids = self._token_ids[:tokens]
        token_ids[:] = state.tokens[slots[row_of], positions]
        return ForwardContext(
            token_ids=token_ids,
            positions=positions,
            row_of=row_of,
            query_start=query_start,
            key_len=starts + counts,
            tables=self._gather_tables(slots),
            rope_rows=self._gather_rope(pieces, positions, query_start),
            logit_rows=logit_rows(pieces, query_start),
            kv=self._pool,
        )

    def _gather_tables(self, slots: NDArray[np.intp]) -> I32:
        width = int(self._state.num_blocks[slots].max())
        out = self._tables[: len(slots) * width].reshape(len(slots), width)
        out[:] = self._state.tables[slots, :width]
        return out

    def _gather_rope(self, pieces: Sequence[Piece], positions: I32, query_start: I32) -> I32:
        if self._rope_rows is None:
            return positions
        parts = [
            self._rope_rows(p.slot, positions[a:b], int(self._state.num_prompt[p.slot]))
            for p, a, b in zip(pieces, query_start[:-1], query_start[1:], strict=True)
        ]
        return np.concatenate(parts).astype(np.int32, copy=False)


def logit_rows(pieces: Sequence[Piece], query_start: I32) -> I32:
    """Indices of the tokens whose logits are wanted: the last ones of each piece, ascending."""
    if all(p.logits == 1 for p in pieces):
        return query_start[1:] - 1
    parts = [
        np.arange(end - p.logits, end, dtype=np.int32)
        for p, end in zip(pieces, query_start[1:].tolist(), strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
