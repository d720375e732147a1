"""Text of callers that looks like a special token must stay text.

A template mixes its own role marks with the callers' words. Before rendering, every look-alike in those words
gets a mark inside (a code point that no text uses), so that it is no special token any more; after the
rendered text has been split at the template's own special tokens, the marks are taken out again.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from headrace.base.errors import RequestError

_NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)]
_ANY_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
MAX_DEPTH = 64


class Lookalikes:
    """Finds special tokens, and beginnings and ends of them, in callers' words.

    Args:
        texts: the texts of the special tokens.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted({t for t in texts if t}, key=lambda t: (-len(t), t))
        # Templates may change case, so case does not count.
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)
        folded = [t.lower() for t in longest_first]
        self._heads = {t[:n] for t in folded for n in range(1, len(t))}
        self._tails = {t[n:] for t in folded for n in range(1, len(t))}
        self._longest = max(map(len, folded), default=1) - 1

    def mark(self, text: str, mark: str) -> str:
        """`text` with the mark inside every look-alike, and where its ends could become part of one."""
        marked = self._pattern.sub(lambda found: found.group()[0] + mark + found.group()[1:], text)
        end = len(marked.rstrip())
        if self._is_part(marked[max(0, end - self._longest) : end].lower(), self._heads, from_end=True):
            marked = marked[:end] + mark + marked[end:]
        start = len(marked) - len(marked.lstrip())
        if self._is_part(marked[start : start + self._longest].lower(), self._tails, from_end=False):
            marked = marked[:start] + mark + marked[start:]
        return marked

    @staticmethod
    def _is_part(edge: str, parts: set[str], *, from_end: bool) -> bool:
        return any((edge[-n:] if from_end else edge[:n]) in parts for n in range(1, len(edge) + 1))


def unused_marks(values: Iterable[Any], count: int) -> list[str]:
    """Code points that occur nowhere in the values.

    Raises:
        RequestError: the values use nearly all of Unicode's noncharacters, or nest too deep.
    """
    used: set[str] = set()

    def collect(text: str) -> str:
        used.update(_ANY_NONCHARACTER.findall(text))
        return text

    for value in values:
        map_texts(value, collect)
    free = [c for c in _NONCHARACTERS if c not in used]
    if len(free) < count:
        raise RequestError(
            "the messages hold too many noncharacters (U+FDD0 to U+FDEF); remove them", param="messages"
        )
    return free[:count]


def map_texts(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """A copy of a JSON value with every string changed, keys included.

    Raises:
        RequestError: it nests deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise RequestError(f"messages and tools may nest {MAX_DEPTH} deep", param="messages")
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {map_texts(k, change, depth + 1): map_texts(v, change, depth + 1) for k, v in items}
    if isinstance(value, list | tuple):
        return [map_texts(v, change, depth + 1) for v in cast("list[Any]", value)]
    return value
