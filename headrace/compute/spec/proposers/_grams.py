"""Keys of n-grams: one number for the last n tokens, equal for equal tokens.

Two n-grams may share a key, once in about 2**32 pairs; then a draft is wrong, which costs a check.
"""

from collections.abc import Sequence

import numpy as np

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
