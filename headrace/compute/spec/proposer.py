"""What a proposer of drafts is."""

from collections.abc import Callable, Sequence
from enum import IntFlag
from typing import NamedTuple, Protocol

from headrace.base.registry import Registry


class Needs(IntFlag):
    """What a proposer needs besides the tokens."""

    NOTHING = 0
    HIDDEN = 1
    """The target's hidden states."""


class Ask(NamedTuple):
    """Drafts wanted for the sequence in a slot."""

    slot: int
    ids: Sequence[int]
    """All its tokens. Between two asks of a stay in a slot it only grows at its end."""
    most: int
    """Most drafts, at least 1."""


class Proposer(Protocol):
    """Guesses the tokens that follow sequences. Wrong guesses cost time and never change a token.

    One thread calls it. It keeps what it knows of a sequence by slot, from the first ask on.
    """

    needs: Needs
    auto_place: int
    """Under `auto` the one with the lowest is asked first, the next where it has nothing to say."""

    def begin(self, slot: int) -> None:
        """Another sequence is in the slot, or the same one comes back: forget what was known."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask, most likely continuation, at most as many as wanted; none is an answer too."""
        ...

    def end(self, slot: int) -> None:
        """The sequence leaves its slot: free what is held for it."""
        ...


PROPOSERS: Registry[Callable[[], Proposer]] = Registry(
    "method of speculation", "headrace.compute.spec.proposers", "PROPOSER"
)
