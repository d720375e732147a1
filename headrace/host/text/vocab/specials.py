"""Splits text at special tokens, so that the rest can be encoded as plain text."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.base.errors import CheckpointError

MAX_CHARS, MAX_CHARS_IN_ALL = 128, 1 << 20
"""Longest special token, and all of them together: their beginnings and ends are kept to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A token that stands for no text: role marks, begin and end marks.

    `strip_left` and `strip_right` say that white space beside it belongs to it; `single_word` that it counts
    only between characters that are not word characters.
    """

    id: int
    text: str
    strip_left: bool = False
    strip_right: bool = False
    single_word: bool = False


class SpecialSplitter:
    """Finds special tokens in text: leftmost, and the longest of those that begin at one place.

    Raises:
        CheckpointError: special tokens are longer than any that makes sense.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._by_text: Mapping[str, SpecialToken] = {t.text: t for t in tokens if t.text}
        _check_lengths(self._by_text)
        self._pattern = _alternation(self._by_text)

    def split(self, text: str) -> Iterator[str | SpecialToken]:
        """Pieces of `text` in order: plain strings (never empty) and special tokens."""
        start = 0
        for token, begin, end in self._matches(text):
            if begin > start:
                yield text[start:begin]
            yield token
            start = end
        if start < len(text):
            yield text[start:]

    def _matches(self, text: str) -> Iterator[tuple[SpecialToken, int, int]]:
        if self._pattern is None:
            return
        for found in self._pattern.finditer(text):
            token = self._by_text[found.group()]
            begin, end = found.span()
            if token.single_word and not _stands_alone(text, begin, end):
                continue
            while token.strip_left and begin and text[begin - 1].isspace():
                begin -= 1
            while token.strip_right and end < len(text) and text[end].isspace():
                end += 1
            yield token, begin, end


def _check_lengths(texts: Iterable[str]) -> None:
    lengths = [len(text) for text in texts]
    if max(lengths, default=0) > MAX_CHARS or sum(lengths) > MAX_CHARS_IN_ALL:
        raise CheckpointError(
            f"the longest special token has {max(lengths)} characters, all together {sum(lengths)}; "
            f"the limits are {MAX_CHARS} and {MAX_CHARS_IN_ALL}"
        )


def _alternation(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(re.escape(text) for text in longest_first)) if longest_first else None


def _stands_alone(text: str, begin: int, end: int) -> bool:
    before = text[begin - 1 : begin]
    after = text[end : end + 1]
    return not (_is_word(before) or _is_word(after))


def _is_word(char: str) -> bool:
    return bool(re.match(r"\w", char))
