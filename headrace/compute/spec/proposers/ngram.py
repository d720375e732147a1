"""What followed the last n tokens when they occurred before, in prompt or output; several places are ranked.

    ids    a b c d x y z ... a b c | ?       the longest n-gram of SIZES that occurred before ends at `c`;
               ^------- continuation         d x y z ... are the drafts

Places of an n-gram form a chain, the latest first. Where the longest n that occurred has several, the latest
`PLACES` vote (`_votes`), each with the square of how many tokens before it agree; of equal sums the later
place counts. An index per n grows with the sequence: a token costs one entry per n, an ask one look-up
per n and the places of one, whatever the length of the context.

Prompt lookup decoding: Saxena 2023 (https://github.com/apoorvumang/prompt-lookup-decoding), which searches
anew at each step, and follows the first occurrence.
"""

from collections.abc import Sequence

from headrace.compute.spec.proposer import Ask, Needs
from headrace.compute.spec.proposers._grams import Chains
from headrace.compute.spec.proposers._votes import draft, voters_of

SIZES = (4, 3, 2)
"""n, the most telling first."""
PLACES = 8
"""Places that are looked at."""


class NGram:
    """See the module's page."""

    needs = Needs.NOTHING
    auto_place = 1

    def __init__(self) -> None:
        self._chains_by_slot: dict[int, tuple[Chains, ...]] = {}

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._chains_by_slot.pop(slot, None)

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        return [self._drafts(ask) for ask in asks]

    def _drafts(self, ask: Ask) -> list[int]:
        all_chains = self._chains_by_slot.get(ask.slot)
        if all_chains is None:
            all_chains = self._chains_by_slot[ask.slot] = tuple(map(Chains, SIZES))
        for chains in all_chains:
            chains.grow(ask.ids)
        for chains in all_chains:
            places = chains.places(ask.ids, PLACES)
            if places:
                return draft(ask.ids, voters_of(ask.ids, places, chains.size), ask.most)
        return []


PROPOSER = NGram
