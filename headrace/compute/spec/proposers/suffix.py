"""What followed the longest ends of the sequence that occurred before; more drafts for longer matches.

    ids    .. p q a b c x y .. r a b c x z .. q a b c | ?
                  ^match 4: q a b c, then x y   ^match 3: a b c, then x z

Places with the same last `STEM` tokens form a chain, the latest first (as in LZ77 compressors). Of the first
`CHAIN` places of the chain the length of the match is counted backwards, and their continuations vote
(`_votes`). If it may remember, as many places of finished answers of the same owner vote with them
(`_answers`).

After SuffixDecoding (Oliaro, Jia, Campos and Qiao 2024, arXiv:2411.04975), whose suffix trees are walked
here without being built: memory is one number per token, the cost of an ask is bounded, and that of a token
is constant.
"""

from collections.abc import Sequence

from headrace.compute.spec.proposer import Ask, Needs, Owner
from headrace.compute.spec.proposers._answers import STEM, Memory
from headrace.compute.spec.proposers._grams import Chains
from headrace.compute.spec.proposers._votes import draft, voters_of

CHAIN = 12
"""Places that are looked at; as many again of finished answers."""


class Suffix:
    """See the module's page."""

    needs = Needs.NOTHING
    auto_place = 0

    def __init__(self) -> None:
        self._chains_by_slot: dict[int, Chains] = {}
        self._memory: Memory | None = None
        self._owner_by_slot: dict[int, tuple[Owner, int]] = {}
        """With the number of tokens of the prompt."""

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._chains_by_slot.pop(slot, None)
        self._owner_by_slot.pop(slot, None)

    end = begin

    def remember(self, most_tokens: int) -> None:
        """Hold so many tokens of finished answers from now on."""
        self._memory = Memory(most_tokens)

    def belong(self, slot: int, owner: Owner, num_prompt: int) -> None:
        """Whose sequence is in the slot."""
        self._owner_by_slot[slot] = owner, num_prompt

    def keep(self, slot: int, answer: Sequence[int]) -> None:
        """Take in the finished answer of the slot's sequence."""
        if self._memory is not None and slot in self._owner_by_slot:
            self._memory.keep(self._owner_by_slot[slot][0], answer)

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        return [self._drafts(ask) for ask in asks]

    def _drafts(self, ask: Ask) -> list[int]:
        chains = self._chains_by_slot.get(ask.slot)
        if chains is None:
            chains = self._chains_by_slot[ask.slot] = Chains(STEM)
        chains.grow(ask.ids)
        voters = voters_of(ask.ids, chains.places(ask.ids, CHAIN), STEM)
        if self._memory is not None and ask.slot in self._owner_by_slot:
            owner, num_prompt = self._owner_by_slot[ask.slot]
            answers = self._memory.of(owner)
            if answers is not None:
                voters += answers.voters(ask.ids, num_prompt, CHAIN)
        return draft(ask.ids, voters, ask.most)


PROPOSER = Suffix
