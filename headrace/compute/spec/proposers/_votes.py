"""From places with equal beginnings to drafts: each votes for what follows it, token by token.

    places    .. q a b c x y ..    match 4: 16 votes for x, y        a place that voted otherwise drops out
              .. r a b c x z ..    match 3:  9 votes for x, z        and votes no more
    the end   .. q a b c | x y

A draft is as sure as the product of the shares of votes up to it. Drafting ends where it is less sure than
`LEAST`, or at `STRETCH` times the length of the longest match.
"""

from collections.abc import Iterable, Sequence

MAX_MATCH = 32
"""Longer matches count as this long."""
STRETCH = 2
"""Drafts per token of the match."""
LEAST = 0.3
"""Drafts that are less sure are not worth a check."""


def draft(ids: Sequence[int], places: Iterable[int], least: int, most: int) -> list[int]:
    """The likeliest continuation.

    Args:
        ids: the sequence.
        places: where its last tokens stood before, the latest first: each is the index of what followed.
        least: tokens that must match; fewer do where two n-grams share a key.
        most: drafts.
    """
    voters: list[tuple[int, int]] = []
    longest, length = 0, len(ids)
    for place in places:
        match = _match(ids, place, length)
        if match >= least:
            voters.append((match * match, place))
            longest = max(longest, match)
    return _vote(ids, voters, min(most, STRETCH * longest))


def _match(ids: Sequence[int], place: int, length: int) -> int:
    """How many tokens before `place` equal those at the end."""
    most = min(place, MAX_MATCH)
    for back in range(1, most + 1):
        if ids[place - back] != ids[length - back]:
            return back - 1
    return most


def _vote(ids: Sequence[int], voters: list[tuple[int, int]], most: int) -> list[int]:
    """Token by token what most voters say; `voters` are (votes, place), the latest first.

    Where the sequence ends, what was copied goes on being copied.
    """
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
