"""n-grams: their keys, and the places where they occurred.

A key is one number for the last n tokens, equal for equal tokens.

Two n-grams may share a key, once in about 2**32 pairs; then a draft is wrong, which costs a check.
"""

from collections.abc import Sequence

import numpy as np

_BULK = 64
"""From so many new tokens on, keys are made all at once."""
_MASK = (1 << 64) - 1
_FACTORS = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
)


def key_of(ids: Sequence[int], end: int, size: int) -> int:
    """The key of tokens [end - size, end)."""
    key = 0
    for i in range(size):
        key += (ids[end - size + i] + 1) * _FACTORS[i]
    return key & _MASK


def keys_of(ids: Sequence[int], first: int, last: int, size: int) -> list[int]:
    """The keys of the n-grams that end at `first` to `last`, both included; `first` is at least `size`."""
    part = np.array(ids[first - size : last], np.uint64) + np.uint64(1)
    count = last - first + 1
    keys = np.zeros(count, np.uint64)
    for i in range(size):
        keys += part[i : i + count] * np.uint64(_FACTORS[i])
    return keys.tolist()


class Chains:
    """The places of all n-grams of one sequence: those of equal n-grams are linked, the latest first.

    A place is the index of the token after the n-gram. Growing costs one entry per token.

    Args:
        size: n.
    """

    __slots__ = ("_before", "_latest_by_key", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._latest_by_key: dict[int, int] = {}
        self._before: list[int] = [0] * size
        """[place] -> the place before it with the same n-gram; 0: none."""

    def grow(self, ids: Sequence[int]) -> None:
        """Take in the n-grams that have a continuation by now: all but those at the very end."""
        before, latest, size = self._before, self._latest_by_key, self.size
        first, last = len(before), len(ids) - 1
        if last - first > _BULK:
            keys = keys_of(ids, first, last, size)
        else:
            keys = [key_of(ids, end, size) for end in range(first, last + 1)]
        for end, key in enumerate(keys, first):
            before.append(latest.get(key, 0))
            latest[key] = end

    def places(self, ids: Sequence[int], most: int) -> list[int]:
        """The latest `most` places of the n-gram at the end of `ids`."""
        if len(ids) <= self.size:
            return []
        found: list[int] = []
        place = self._latest_by_key.get(key_of(ids, len(ids), self.size), 0)
        while place and len(found) < most:
            found.append(place)
            place = self._before[place]
        return found
