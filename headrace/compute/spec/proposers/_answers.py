"""Finished answers, from which later answers of the same owner may be drafted.

    ids of an owner    | a b c d | a b x | ...        |: EDGE, before each answer

An owner is a tenant with a salt, as in the prefix cache a salt keeps requests apart: nothing that is made for
an owner depends on another's text. Places with the same last `STEM` tokens are chained, the latest first,
as `proposers/suffix` chains those of a request; the edge counts as a token, so that an answer is found again
by its first token.

All owners together hold a bounded number of tokens, and each owner counts as some for what is kept of it
alone: else many salts with short answers would take many times the memory. Where one more answer does not
fit, the oldest answer of the tenant that holds most leaves: who asks much, or under many salts, displaces
its own.
"""

from collections import deque
from collections.abc import Sequence

from headrace.compute.spec.proposer import Owner
from headrace.compute.spec.proposers._grams import key_of, keys_of
from headrace.compute.spec.proposers._votes import EDGE, MAX_MATCH, Voter, match

STEM = 2
"""Tokens before a place by which it is found."""
OWNER_TOKENS = 8
"""What an owner counts as beside its answers: its tables take 1.4 KB, a token some 0.2 KB; measured."""
SALT_PART = 50
"""Characters of a salt that count as one token more; they take up to 4 bytes each."""


class Answers:
    """The answers of one owner.

    A place is the number of a token since the first one that was ever kept; of all that is before `_alive`
    the answer has left. `ids` begins with place `first`.
    """

    __slots__ = ("_alive", "_before", "_known", "_latest_by_key", "_starts", "first", "ids", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.ids: list[int] = []
        self.first = self._alive = 1
        self._before: list[int] = []
        """[place - first] -> the place before it with the same stem; 0, or one that left: none."""
        self._latest_by_key: dict[int, int] = {}
        self._starts: deque[tuple[int, int]] = deque()
        """(place of its edge, hash) of each answer."""
        self._known: set[int] = set()

    def knows(self, answer: Sequence[int]) -> bool:
        """Whether it is there."""
        return hash(tuple(answer)) in self._known

    def add(self, answer: Sequence[int]) -> None:
        """Take in an answer of at least `STEM` tokens that is not there."""
        hashed = hash(tuple(answer))
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
        most: tokens that are held at most, an edge for each answer and what owners count as included.
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
        """Remember an answer, if it is long enough to be found again and fits into what is held."""
        size, room = len(answer) + 1, _room_of(owner)
        if len(answer) < STEM or size + room > self._most:
            return
        answers = self._answers_by_owner.get(owner)
        if answers is not None and answers.knows(answer):
            return
        while self.num_tokens + size + room * (owner not in self._answers_by_owner) > self._most:
            self._drop_oldest()
        answers = self._answers_by_owner.get(owner)
        if answers is None:
            answers = self._answers_by_owner[owner] = Answers(owner)
            size += room
        answers.add(answer)
        shelf = self._shelf_by_tenant.setdefault(owner.tenant, _Shelf())
        shelf.answers.append(answers)
        shelf.num_tokens += size
        self.num_tokens += size

    def _drop_oldest(self) -> None:
        """Forget the oldest answer of the tenant that holds most."""
        tenant, shelf = max(self._shelf_by_tenant.items(), key=lambda item: item[1].num_tokens)
        answers = shelf.answers.popleft()
        count = answers.drop_oldest()
        if not answers.ids:
            count += _room_of(answers.owner)
            del self._answers_by_owner[answers.owner]
        shelf.num_tokens -= count
        self.num_tokens -= count
        if not shelf.answers:
            del self._shelf_by_tenant[tenant]


class _Shelf:
    """What one tenant holds."""

    __slots__ = ("answers", "num_tokens")

    def __init__(self) -> None:
        self.answers: deque[Answers] = deque()
        """Where each answer is, the oldest first."""
        self.num_tokens = 0


def _room_of(owner: Owner) -> int:
    """What an owner counts as beside its answers, in tokens."""
    return OWNER_TOKENS + len(owner.salt) // SALT_PART


def _stems(answer: Sequence[int]) -> list[int]:
    """The keys of the places of an answer: before its second token, its third, and so on."""
    return [key_of((EDGE, answer[0]), STEM, STEM), *keys_of(answer, STEM, len(answer) - 1, STEM)]
