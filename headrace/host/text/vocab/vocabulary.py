"""What a tokenizer is made of, whatever file it comes from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import tokenizers

from headrace.host.text.vocab.specials import SpecialToken
from headrace.host.text.vocab.spelling import Spelling


class SpacePrefix(Enum):
    """Where a space is put in front of text, as SentencePiece vocabularies ask for."""

    NEVER = "never"
    FIRST = "first"
    """At the very beginning, unless the text begins with a space."""
    EACH = "each"
    """At the beginning and after every special token."""
    BY_LIBRARY = "by_library"
    """The library's encoder puts it; it only has to be taken away when decoding."""


class TooManyTokensError(Exception):
    """A text has at least `count` tokens, more than were asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(f"at least {count} tokens")
        self.count = count


def counted(
    found: list[tokenizers.Encoding], most: int | None, most_empty: Callable[[], int] = int
) -> tokenizers.Encoding:
    """The one encoding of a list, which is emptied.

    Raises:
        TooManyTokensError: it has more than `most` tokens (None: there is no limit), even if as many as
            `most_empty` says of them do not count. The encoding, some hundred bytes a token, is gone by then:
            an exception keeps what its frames hold.
    """
    one = found.pop()
    if most is None or len(one) <= most:
        return one
    least = len(one) - most_empty()
    if least <= most:
        return one
    del one
    raise TooManyTokensError(least)


class Encoder(Protocol):
    """From plain text to token ids; knows no special tokens. Safe to share between threads."""

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Token ids of a text.

        Raises:
            TypeError, UnicodeEncodeError: it holds a lone surrogate.
            TooManyTokensError: they are more than `most`. Found before Python objects are made of them: those
                of a text of 300 KB take ten megabytes for a moment, and what is allocated beside them lasts.
        """
        ...

    def token_to_id(self, text: str) -> int | None:
        """The id of an entry, spelled as in the vocabulary; of equal entries the first."""
        ...


@dataclass(frozen=True, slots=True)
class LibraryEncoder:
    """An encoder of the `tokenizers` library."""

    library: tokenizers.Tokenizer

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """See `Encoder`."""
        return counted(self.library.encode_batch_fast([text], add_special_tokens=False), most).ids

    def token_to_id(self, text: str) -> int | None:
        """See `Encoder`."""
        return self.library.token_to_id(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The entries of a tokenizer and how they are spelled; an entry's index is its token id."""

    core: Encoder
    entries: Sequence[str]
    spelling: Spelling
    specials: tuple[SpecialToken, ...] = ()
    literals: frozenset[int] = frozenset()
    """Tokens whose entry is plain text, whatever the spelling (added by users of the vocabulary)."""
    space_prefix: SpacePrefix = SpacePrefix.NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What begins and ends a text, and the chat template that uses those marks."""

    bos_id: int | None = None
    end_ids: frozenset[int] = frozenset()
    prefix: tuple[int, ...] = ()
    """Put before a text when special tokens are asked for."""
    suffix: tuple[int, ...] = ()
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names that templates use (`bos_token`, `eos_token`, ...) and their texts."""
