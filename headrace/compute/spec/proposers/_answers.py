"""Finished answers, from which later answers of the same owner may be drafted.

    ids of an owner    | a b c d | a b x | ...        |: EDGE, before each answer

An owner is a tenant with a salt, as in the prefix cache a salt keeps requests apart: nothing that is made for
an owner depends on another's text. Places with the same last `STEM` tokens are chained, the latest first,
as `proposers/suffix` chains those of a request; the edge counts as a token, so that an answer is found again
by its first token.

All owners together hold a bounded number of tokens. Where one more answer does not fit, the oldest answer of
the tenant that holds most leaves: who asks much, or under many salts, displaces its own.
"""

from collections import deque
from collections.abc import Sequence

from headrace.compute.spec.proposer import Owner
from headrace.compute.spec.proposers._grams import key_of, keys_of
from headrace.compute.spec.proposers._votes import EDGE, MAX_MATCH, Voter, match

STEM = 2
"""Tokens before a place by which it is found."""


class Answers:
    """The answers of one owner.

    A place is the number of a token since the first one that was ever kept; of all that is before `_alive`
    the answer has left. `ids` begins with place `first`.
    """

    __slots__ = ("_alive", "_before", "_known", "_latest_by_key", "_starts", "first", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.first = self._alive = 1
        self._before: list[int] = []
        """[place - first] -> the place before it with the same stem; 0, or one that left: none."""
        self._latest_by_key: dict[int, int] = {}
        self._starts: deque[tuple[int, int]] = deque()
        """(place of its edge, hash) of each answer."""
        self._known: set[int] = set()

    def add(self, answer: Sequence[int]) -> bool:
        """Take in an answer of at least `STEM` tokens; False: it is there already."""
        hashed = hash(tuple(answer))
        if hashed in self._known:
            return False
        start = self.first + len(self.ids)
        self._known.add(hashed)
        self._starts.append((start, hashed))
        self.ids.append(EDGE)
        self.ids.extend(answer)
        before, latest = self._before, self._latest_by_key
        before += [0] * STEM
        for place, key in enumerate(_stems(answer), start + STEM):
            before.append(latest.get(key, 0))
            latest[key] = place
        return True

    def drop_oldest(self) -> int:
        """Forget the oldest answer; returns how many tokens that were, its edge included."""
        start, hashed = self._starts.popleft()
        self._known.discard(hashed)
        end = self._starts[0][0] if self._starts else self.first + len(self.ids)
        answer = self.ids[start + 1 - self.first : end - self.first]
        for place, key in enumerate(_stems(answer), start + STEM):
            if self._latest_by_key.get(key) == place:
                del self._latest_by_key[key]
        self._alive = end
        gone = end - self.first
        if 2 * gone >= len(self.ids):
            del self.ids[:gone], self._before[:gone]
            self.first = end
        return end - start

    def voters(self, ids: Sequence[int], num_prompt: int, most: int) -> list[Voter]:
        """The latest `most` places that the end of a sequence matches.

        Of a sequence with one token behind its prompt those are the beginnings with that token.
        """
        is_first = len(ids) == num_prompt + 1
        stem = (EDGE, ids[-1]) if is_first else ids[-STEM:]
        places = self._places(key_of(stem, STEM, STEM), most)
        found = ((self._match(ids, num_prompt, place), self.ids, place) for place in places)
        return [voter for voter in found if voter[0] >= STEM]

    def _match(self, ids: Sequence[int], num_prompt: int, place: int) -> int:
        """How many tokens before a place equal those at the end; an edge equals that of the answer."""
        found = match(self.ids, place, ids)
        is_edge = found < MAX_MATCH and self.ids[place - found - 1] == EDGE
        return found + (is_edge and len(ids) - found == num_prompt)

    def _places(self, key: int, most: int) -> list[int]:
        """The latest `most` places whose stem has this key, as indexes of `ids`."""
        found: list[int] = []
        first, alive, before = self.first, self._alive, self._before
        place = self._latest_by_key.get(key, 0)
        while place >= alive and len(found) < most:
            found.append(place - first)
            place = before[place - first]
        return found


class Memory:
    """The answers of all owners.

    Args:
        most: tokens that are held at most, an edge for each answer included.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers_by_owner: dict[Owner, Answers] = {}
        self._shelf_by_tenant: dict[str, _Shelf] = {}
        self.num_tokens = 0

    def of(self, owner: Owner) -> Answers | None:
        """The owner's answers; None: there are none."""
        return self._answers_by_owner.get(owner)

    def keep(self, owner: Owner, answer: Sequence[int]) -> None:
        """Remember an answer, if it is long enough to be found again and no longer than what is held."""
        size = len(answer) + 1
        if len(answer) < STEM or size > self._most:
            return
        answers = self._answers_by_owner.get(owner) or Answers()
        if not answers.add(answer):
            return
        self._answers_by_owner[owner] = answers
        while self.num_tokens + size > self._most:
            self._drop_oldest()
        shelf = self._shelf_by_tenant.setdefault(owner.tenant, _Shelf())
        shelf.owners.append(owner)
        shelf.num_tokens += size
        self.num_tokens += size

    def _drop_oldest(self) -> None:
        """Forget the oldest answer of the tenant that holds most."""
        tenant, shelf = max(self._shelf_by_tenant.items(), key=lambda item: item[1].num_tokens)
        owner = shelf.owners.popleft()
        answers = self._answers_by_owner[owner]
        count = answers.drop_oldest()
        shelf.num_tokens -= count
        self.num_tokens -= count
        if not answers.ids:
            del self._answers_by_owner[owner]
        if not shelf.owners:
            del self._shelf_by_tenant[tenant]


class _Shelf:
    """What one tenant holds."""

    __slots__ = ("num_tokens", "owners")

    def __init__(self) -> None:
        self.owners: deque[Owner] = deque()
        """Of each answer, the oldest first."""
        self.num_tokens = 0


def _stems(answer: Sequence[int]) -> list[int]:
    """The keys of the places of an answer: before its second token, its third, and so on."""
    return [key_of((EDGE, answer[0]), STEM, STEM), *keys_of(answer, STEM, len(answer) - 1, STEM)]
