"""From places with equal beginnings to drafts: each votes for what follows it, token by token.

    places    .. q a b c x y ..    match 4: 16 votes for x, y        a place that voted otherwise drops out
              .. r a b c x z ..    match 3:  9 votes for x, z        and votes no more
    the end   .. q a b c | x y

Places may also lie in other texts, behind those of the sequence itself; such a text ends at an `EDGE`.

A draft is as sure as the product of the shares of votes up to it. Drafting ends where it is less sure than
`LEAST`, or at `STRETCH` times the length of the longest match.
"""

from collections.abc import Iterable, Sequence

EDGE = -1
"""No token: where a text ends and the next one begins."""

MAX_MATCH = 32
"""Longer matches count as this long."""
STRETCH = 2
"""Drafts per token of the match."""
_ONE_BY_ONE = 4
"""Tokens of a match that are compared one by one: most matches are short. Longer ones are bisected."""
LEAST = 0.3
"""Drafts that are less sure are not worth a check."""


Voter = tuple[int, Sequence[int], int]
"""Tokens that match, the text, and the index in it of what followed."""


def draft(ids: Sequence[int], voters: Sequence[Voter], most: int) -> list[int]:
    """The likeliest continuation, at most `most` tokens; of equal votes those of the first voter count."""
    longest = max((voter[0] for voter in voters), default=0)
    return _vote(ids, list(voters), min(most, STRETCH * longest))


def voters_of(ids: Sequence[int], places: Iterable[int], least: int) -> list[Voter]:
    """The places of the sequence itself that match by `least` tokens: fewer do where n-grams share a key."""
    found = ((match(ids, place, ids), ids, place) for place in places)
    return [voter for voter in found if voter[0] >= least]


def match(text: Sequence[int], place: int, ids: Sequence[int]) -> int:
    """How many tokens before a place of a text equal those at the end of `ids`, up to `MAX_MATCH`."""
    length = len(ids)
    most = min(place, length, MAX_MATCH)
    equal = min(most, _ONE_BY_ONE)
    for back in range(1, equal + 1):
        if text[place - back] != ids[length - back]:
            return back - 1
    while equal < most:
        middle = (equal + most + 1) // 2
        if text[place - middle : place - equal] == ids[length - middle : length - equal]:
            equal = middle
        else:
            most = middle - 1
    return equal


def _vote(ids: Sequence[int], voters: list[Voter], most: int) -> list[int]:
    """Token by token what most voters say.

    Where the sequence ends, what was copied goes on being copied.
    """
    drafts: list[int] = []
    sure = 1.0
    for i in range(most):
        said: list[int] = []
        for _, text, place in voters:
            at, end = place + i, len(text)
            said.append(text[at] if at < end else drafts[at - end] if text is ids else EDGE)
        best = said[0]
        if said.count(best) < len(said):
            votes: dict[int, int] = {}
            for (matching, _, _), token in zip(voters, said, strict=True):
                if token != EDGE:
                    votes[token] = votes.get(token, 0) + matching * matching
            best = max(votes, key=votes.__getitem__)
            sure *= votes[best] / sum(votes.values())
            if sure < LEAST:
                break
            voters = [voter for voter, token in zip(voters, said, strict=True) if token == best]
        elif best == EDGE:
            break
        drafts.append(best)
    return drafts
