"""What followed the last n tokens when they occurred last, in prompt or output.

    ids    a b c d x y z ... a b c | ?       the longest n-gram of SIZES that occurred before ends at `c`;
               ^------- continuation         d x y z ... are the drafts

An index per n maps the key of an n-gram to the place after its last occurrence. It grows with the sequence:
a token costs one entry per n, an ask one look-up per n, whatever the length of the context.

Prompt lookup decoding: Saxena 2023 (https://github.com/apoorvumang/prompt-lookup-decoding), which searches
anew at each step and takes the first occurrence; here the last one counts.
"""

from collections.abc import Sequence

from headrace.compute.spec.proposer import Ask, Needs
from headrace.compute.spec.proposers._grams import key_of, keys_of

SIZES = (4, 3, 2)
"""n, the most telling first."""
_BULK = 64
"""From so many new tokens on, keys are made all at once."""


class _Index:
    """n-grams of one sequence."""

    __slots__ = ("_after_by_key", "_num_indexed")

    def __init__(self) -> None:
        self._after_by_key: tuple[dict[int, int], ...] = tuple({} for _ in SIZES)
        self._num_indexed = 0

    def drafts(self, ids: Sequence[int], most: int) -> list[int]:
        """The continuation of the longest n-gram at the end of `ids` that occurred before."""
        self._grow(ids)
        length = len(ids)
        for size, after_by_key in zip(SIZES, self._after_by_key, strict=True):
            if length > size:
                at = after_by_key.get(key_of(ids, length, size))
                if at is not None:
                    return continuation(ids, at, most)
        return []

    def _grow(self, ids: Sequence[int]) -> None:
        """Take in the n-grams that have a continuation by now: all but those at the very end."""
        last = len(ids) - 1
        first = self._num_indexed + 1
        for size, after_by_key in zip(SIZES, self._after_by_key, strict=True):
            begin = max(first, size)
            if last - begin > _BULK:
                after_by_key.update(zip(keys_of(ids, begin, last, size), range(begin, last + 1), strict=True))
            else:
                for end in range(begin, last + 1):
                    after_by_key[key_of(ids, end, size)] = end
        self._num_indexed = max(self._num_indexed, last)


def continuation(ids: Sequence[int], at: int, most: int) -> list[int]:
    """`most` tokens from place `at` on; where the sequence ends, what was copied goes on being copied."""
    drafts = list(ids[at : at + most])
    period = len(ids) - at
    while len(drafts) < most:
        drafts.append(drafts[len(drafts) - period])
    return drafts


class NGram:
    """See the module's page."""

    needs = Needs.NOTHING
    auto_place = 1

    def __init__(self) -> None:
        self._index_by_slot: dict[int, _Index] = {}

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._index_by_slot.pop(slot, None)

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        found: list[list[int]] = []
        for ask in asks:
            index = self._index_by_slot.get(ask.slot)
            if index is None:
                index = self._index_by_slot[ask.slot] = _Index()
            found.append(index.drafts(ask.ids, ask.most))
        return found


PROPOSER = NGram
