"""Block moves: what happens to blocks before the rows of a step run."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.base.step import BlockMove, MoveKind


class Plane(Protocol):
    """Something that is kept per block: the target's KV pool, or a drafter's beside it."""

    def copy(self, src: int, dst: int) -> None:
        """Block `dst` becomes a copy of `src`."""
        ...

    def fill(self, block: int, value: float) -> None:
        """Set a whole block."""
        ...


def apply(moves: Iterable[BlockMove], planes: Sequence[Plane]) -> None:
    """Carry out the moves in order, in every plane.

    Raises:
        ValueError: a move that names a store, or no blocks: there is no store here.
    """
    for move in moves:
        if move.kind is MoveKind.COPY and isinstance(move.src, int) and isinstance(move.dst, int):
            for plane in planes:
                plane.copy(move.src, move.dst)
        elif move.kind is MoveKind.ZERO and isinstance(move.dst, int):
            for plane in planes:
                plane.fill(move.dst, 0.0)
        else:
            raise ValueError(f"cannot carry out {move}: no store is attached")
