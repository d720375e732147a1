"""Hidden states of the target that a pass computed, for proposers that need them.

wanted rows   w0 w1 w2 w3        a row that checked 3 drafts, 1 of them right: w0 and w1 stand, and the
               ^drawn ^          state at the sequence's last computed token is w1
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.compute.ops.api import F32, I32


@dataclass(frozen=True, slots=True)
class SeenRow:
    """What a pass computed of a sequence, rejected drafts left out."""

    slot: int
    start: int
    """Position of the first token."""
    count: int
    """Tokens that stand, at least 1."""
    first: int
    """Index of the first among the tokens of the pass."""
    last_wanted: int
    """Index of the last among the wanted rows of the pass; -1: its logits were not wanted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A pass of the target; valid until the next one."""

    rows: Sequence[SeenRow]
    token_ids: I32
    """Of the pass [T]."""
    kept: Sequence[F32]
    """`Program.kept`."""


class LastStates:
    """The state at the last computed token of each slot.

    Args:
        num_slots: slots.
        width: columns of a state.
    """

    def __init__(self, num_slots: int, width: int) -> None:
        self._states = np.zeros((num_slots, width), np.float32)
        self._positions = np.full(num_slots, -1, np.int64)

    def forget(self, slot: int) -> None:
        """Another sequence is in the slot."""
        self._positions[slot] = -1

    def take(self, rows: Sequence[SeenRow], states: F32) -> None:
        """Copy the states of the wanted rows [S, width] that are the last of their sequences."""
        last = [row for row in rows if row.last_wanted >= 0]
        if last:
            slots = [row.slot for row in last]
            self._states[slots] = states[[row.last_wanted for row in last]]
            self._positions[slots] = [row.start + row.count - 1 for row in last]

    def is_at(self, slot: int, position: int) -> bool:
        """Whether the state of the token at `position` is known."""
        return bool(self._positions[slot] == position)

    def get(self, slots: Sequence[int]) -> F32:
        """States [len(slots), width]."""
        return self._states[list(slots)]
