"""Block moves: what happens to blocks before the rows of a step run."""

from collections.abc import Iterable

from headrace.base.step import BlockMove, MoveKind
from headrace.compute.ops.api import KVPool


def apply(moves: Iterable[BlockMove], pool: KVPool) -> None:
    """Carry out the moves in order.

    Raises:
        ValueError: a move that names a store, or no blocks: there is no store here.
    """
    for move in moves:
        if move.kind is MoveKind.COPY and isinstance(move.src, int) and isinstance(move.dst, int):
            pool.copy(move.src, move.dst)
        elif move.kind is MoveKind.ZERO and isinstance(move.dst, int):
            pool.fill(move.dst, 0.0)
        else:
            raise ValueError(f"cannot carry out {move}: no store is attached")
