"""Text to token ids and back: one class for every kind of vocabulary.

Encoding: special tokens are split off here, the text between them goes through the vocabulary's encoder,
which never sees them. Decoding: every token is a string of bytes, so text is the bytes joined; nothing
depends on neighbours.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from threading import Lock

from headrace.base.errors import CheckpointError, RequestError
from headrace.base.memory import give_back
from headrace.base.specs import TokenizerSource
from headrace.host.text.template.lookalike import Lookalikes
from headrace.host.text.vocab import directory, gguf
from headrace.host.text.vocab.library_faults import refused
from headrace.host.text.vocab.specials import SpecialSplitter, SpecialToken
from headrace.host.text.vocab.spelling import SPACE_MARK, literal
from headrace.host.text.vocab.vocabulary import Marks, SpacePrefix, TooManyTokensError, Vocabulary

LONG_CHARS = 1 << 14
"""Longer texts are encoded one at a time: the library takes some hundred bytes per character meanwhile."""


class Tokenizer:
    """Converts between text and token ids. Immutable, safe to share between threads.

    Args:
        vocabulary: the entries and the library's encoder.
        marks: begin and end tokens, chat template.

    Attributes:
        vocab_size: number of token ids; the model's head may have more rows, which decode to nothing.
        bos_id: the begin token, when there is one.
        end_ids: every token that ends an answer, from all files that name one.
        add_bos: whether `encode` puts the begin token first.
        chat_template: the Jinja source, when the model brings one.
        special_tokens: texts by the names that templates use.
    """

    def __init__(self, vocabulary: Vocabulary, marks: Marks) -> None:
        self.vocab_size = len(vocabulary.entries)
        self.bos_id = marks.bos_id
        self.end_ids = marks.end_ids
        self.add_bos = marks.bos_id is not None and marks.bos_id in marks.prefix
        self.chat_template = marks.chat_template
        self.special_tokens = marks.special_tokens
        self.specials = vocabulary.specials
        self.strips_space = vocabulary.space_prefix is not SpacePrefix.NEVER
        self._vocabulary = vocabulary
        self._marks = marks
        self._splitter = SpecialSplitter(vocabulary.specials)
        self._special_by_id = {t.id: t for t in vocabulary.specials}
        self._special_by_text = {t.text: t for t in vocabulary.specials}
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._long = Lock()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, most: int | None = None
    ) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any text; a lone surrogate is refused.
            add_special: put begin (and end) tokens around it, as the model asks for; a begin token that the
                text already starts with is not doubled.
            parse_special: read the text of special tokens as those tokens; off, they are plain text.
            most: give up where there are more tokens.

        Raises:
            RequestError: the text is not valid Unicode.
            TooManyTokensError: there are more than `most` without those around the text.
        """
        pieces = self._splitter.split(text) if parse_special else _whole(text)
        ids = self.encode_pieces(pieces, most)
        if not add_special:
            return ids
        prefix = self._marks.prefix
        if self.add_bos and ids[:1] == [self.bos_id]:
            prefix = tuple(i for i in prefix if i != self.bos_id)
        return [*prefix, *ids, *self._marks.suffix]

    def encode_pieces(self, pieces: Iterable[str | SpecialToken], most: int | None = None) -> list[int]:
        """Token ids of plain texts and special tokens in turn; texts are never read as special tokens.

        Raises:
            TooManyTokensError: there are more than `most`.
        """
        ids: list[int] = []
        after_mark = True
        rule = self._vocabulary.space_prefix
        for piece in pieces:
            if isinstance(piece, SpecialToken):
                ids.append(piece.id)
                if most is not None and len(ids) > most:
                    raise TooManyTokensError(len(ids))
                after_mark = rule is SpacePrefix.EACH
                continue
            bare = not piece.startswith((" ", SPACE_MARK))
            needs_space = rule is SpacePrefix.EACH or (rule is SpacePrefix.FIRST and bare)
            plain = f" {piece}" if after_mark and needs_space else piece
            try:
                ids.extend(self._encode_plain(plain, None if most is None else max(0, most - len(ids))))
            except TooManyTokensError as found:
                raise TooManyTokensError(len(ids) + found.count) from None
            after_mark = False
        return ids

    @cached_property
    def lookalikes(self) -> Lookalikes:
        """Finds texts that look like this tokenizer's special tokens."""
        return Lookalikes(t.text for t in self.specials)

    def split(self, text: str) -> Iterator[str | SpecialToken]:
        """Plain pieces and special tokens of `text`, in order."""
        return self._splitter.split(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD.

        Raises:
            RequestError: an id is negative.
        """
        special = self._special_by_id if skip_special else {}
        text = b"".join(self.token_bytes(i) for i in ids if i not in special).decode("utf-8", "replace")
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; none for ids past the vocabulary (padding rows of the model's head).

        Raises:
            RequestError: the id is negative.
        """
        if token_id >= self.vocab_size:
            return b""
        if token_id < 0:
            raise RequestError(f"token id {token_id} is negative; ids are 0 to {self.vocab_size - 1}")
        known = self._bytes[token_id]
        if known is None:
            known = self._spell(token_id)
            self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        """The text of one token alone; parts of characters become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token stands for no text."""
        return token_id in self._special_by_id

    def token_id(self, text: str) -> int | None:
        """The id of a special token or of a vocabulary entry, spelled as there; None: there is none."""
        special = self._special_by_text.get(text)
        return special.id if special else self._vocabulary.core.token_to_id(text)

    def _spell(self, token_id: int) -> bytes:
        special = self._special_by_id.get(token_id)
        if special is not None:
            return literal(special.text)
        entry = self._vocabulary.entries[token_id]
        return literal(entry) if token_id in self._vocabulary.literals else self._vocabulary.spelling(entry)

    def _encode_plain(self, text: str, most: int | None) -> list[int]:
        if len(text) <= LONG_CHARS:
            return self._encode_core(text, most)
        with self._long:
            try:
                return self._encode_core(text, most)
            finally:
                give_back()

    def _encode_core(self, text: str, most: int | None) -> list[int]:
        try:
            with refused("the model's tokenizer fails on a text", Exception):
                return self._vocabulary.core.encode(text, most)
        except (TypeError, UnicodeEncodeError) as fault:
            place = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), 0)
            raise RequestError(
                f"the text holds a lone surrogate, U+{ord(text[place]):04X}, at character {place}"
            ) from fault


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """The tokenizer of a model.

    Raises:
        CheckpointError: the files are missing, broken, or ask for something Headrace lacks (named in the
            message).
    """
    if source.gguf is not None:
        return Tokenizer(*gguf.read(source.gguf))
    if source.directory is not None:
        return Tokenizer(*directory.read(source.directory))
    raise CheckpointError("this model brings no tokenizer; name one with --tokenizer")


def _whole(text: str) -> Iterator[str]:
    if text:
        yield text
