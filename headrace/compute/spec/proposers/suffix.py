"""What followed the longest ends of the sequence that occurred before; more drafts for longer matches.

    ids    .. p q a b c x y .. r a b c x z .. q a b c | ?
                  ^match 4: q a b c, then x y   ^match 3: a b c, then x z

Places with the same last `STEM` tokens form a chain, the latest first (as in LZ77 compressors). Of the first
`CHAIN` places of the chain the length of the match is counted backwards, and their continuations vote
(`_votes`).

After SuffixDecoding (Oliaro, Jia, Campos and Qiao 2024, arXiv:2411.04975): its suffix trees of earlier
answers are left out, and its tree of continuations is walked without being built: memory is one number per
token, the cost of an ask is bounded, and that of a token is constant.
"""

from collections.abc import Sequence

from headrace.compute.spec.proposer import Ask, Needs
from headrace.compute.spec.proposers._grams import Chains
from headrace.compute.spec.proposers._votes import draft

STEM = 2
"""Tokens that must match at least."""
CHAIN = 12
"""Places that are looked at."""


class Suffix:
    """See the module's page."""

    needs = Needs.NOTHING
    auto_place = 0

    def __init__(self) -> None:
        self._chains_by_slot: dict[int, Chains] = {}

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._chains_by_slot.pop(slot, None)

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        found: list[list[int]] = []
        for ask in asks:
            chains = self._chains_by_slot.get(ask.slot)
            if chains is None:
                chains = self._chains_by_slot[ask.slot] = Chains(STEM)
            chains.grow(ask.ids)
            found.append(draft(ask.ids, chains.places(ask.ids, CHAIN), STEM, ask.most))
        return found


PROPOSER = Suffix
