"""What followed the longest ends of the sequence that occurred before; more drafts for longer matches.

    ids    .. p q a b c x y .. r a b c x z .. q a b c | ?
                  ^match 4: q a b c, then x y   ^match 3: a b c, then x z

Places with the same last `STEM` tokens form a chain, the latest first (as in LZ77 compressors). Of the first
`CHAIN` places of the chain the length of the match is counted backwards, and their continuations vote, token
by token, with the square of their lengths: the places that voted otherwise drop out. A draft is as sure as
the product of the shares of votes; drafting ends where it is less sure than `LEAST`, or at `STRETCH` times
the length of the match.

After SuffixDecoding (Oliaro, Jia, Campos and Qiao 2024, arXiv:2411.04975): its suffix trees of earlier
answers are left out, and its tree of continuations is walked without being built: memory is one number per
token, the cost of an ask is bounded, and that of a token is constant.
"""

from collections.abc import Sequence

from headrace.compute.spec.proposer import Ask, Needs
from headrace.compute.spec.proposers._grams import key_of, keys_of

STEM = 2
"""Tokens that must match at least."""
CHAIN = 12
"""Places that are looked at."""
MAX_MATCH = 32
"""Longer matches count as this long."""
STRETCH = 2
"""Drafts per token of the match."""
LEAST = 0.3
"""Drafts that are less sure are not worth a check."""
_BULK = 64


class _Places:
    """Places of one sequence, chained by what stands before them."""

    __slots__ = ("_before", "_latest_by_key")

    def __init__(self) -> None:
        self._latest_by_key: dict[int, int] = {}
        self._before: list[int] = [0] * STEM
        """[place] -> the place before it with the same stem; 0: none."""

    def drafts(self, ids: Sequence[int], most: int) -> list[int]:
        """The likeliest continuation."""
        self._grow(ids)
        length = len(ids)
        if length <= STEM:
            return []
        place = self._latest_by_key.get(key_of(ids, length, STEM), 0)
        voters: list[tuple[int, int]] = []
        longest = 0
        for _ in range(CHAIN):
            if not place:
                break
            match = _match(ids, place, length)
            if match >= STEM:  # else two stems share a key
                voters.append((match * match, place))
                longest = max(longest, match)
            place = self._before[place]
        return _vote(ids, voters, min(most, STRETCH * longest))

    def _grow(self, ids: Sequence[int]) -> None:
        """Chain the places that have a token by now."""
        before, latest = self._before, self._latest_by_key
        first, last = len(before), len(ids) - 1
        if last - first > _BULK:
            keys = keys_of(ids, first, last, STEM)
        else:
            keys = [key_of(ids, end, STEM) for end in range(first, last + 1)]
        for end, key in enumerate(keys, first):
            before.append(latest.get(key, 0))
            latest[key] = end


def _match(ids: Sequence[int], place: int, length: int) -> int:
    """How many tokens before `place` equal those at the end."""
    most = min(place, MAX_MATCH)
    for back in range(1, most + 1):
        if ids[place - back] != ids[length - back]:
            return back - 1
    return most


def _vote(ids: Sequence[int], voters: list[tuple[int, int]], most: int) -> list[int]:
    """Token by token what most voters say; `voters` are (votes, place), the latest first."""
    drafts: list[int] = []
    length, sure = len(ids), 1.0
    for i in range(most):
        if len(voters) == 1:
            weight, place = voters[0]
            at = place + i
            drafts.append(ids[at] if at < length else drafts[at - length])
            continue
        votes: dict[int, int] = {}
        said: list[int] = []
        for weight, place in voters:
            at = place + i
            token = ids[at] if at < length else drafts[at - length]
            said.append(token)
            votes[token] = votes.get(token, 0) + weight
        if not votes:
            break
        best = max(votes, key=votes.__getitem__)  # of equals the first, which is the latest place's
        sure *= votes[best] / sum(votes.values())
        if sure < LEAST:
            break
        drafts.append(best)
        voters = [voter for voter, token in zip(voters, said, strict=True) if token == best]
    return drafts


class Suffix:
    """See the module's page."""

    needs = Needs.NOTHING
    auto_place = 0

    def __init__(self) -> None:
        self._places_by_slot: dict[int, _Places] = {}

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._places_by_slot.pop(slot, None)

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        found: list[list[int]] = []
        for ask in asks:
            places = self._places_by_slot.get(ask.slot)
            if places is None:
                places = self._places_by_slot[ask.slot] = _Places()
            found.append(places.drafts(ask.ids, ask.most))
        return found


PROPOSER = Suffix
