"""Token ids to text, as they come: constant work per token, never half a character."""

import codecs
from collections.abc import Collection, Sequence

from headrace.host.text.tokenizer import Tokenizer

_MAX_TAIL = 8
"""A character has at most four bytes, so at most four tokens; the rest is room for tokens without text."""


class Detokenizer:
    """Turns the tokens of one answer into text; what `push` and `flush` return joins to `Tokenizer.decode`.

    Args:
        tokenizer: the vocabulary.
        skip_special: leave special tokens out of the text.
        prompt_tail: the last tokens of the prompt that the answer continues, at least four to be right where
            the prompt ends within a character. Given, the answer's first space is kept, and a character that
            the prompt began is finished in the answer.
        shown: special tokens that are text all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        prompt_tail: Sequence[int] = (),
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_space and not prompt_tail
        self._decode(prompt_tail[-_MAX_TAIL:])

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` complete; bytes of a character that may still be completed are held back."""
        if len(ids) == 1:
            (token,) = ids
            if self._skip_special and self._tokenizer.is_special(token) and token not in self._shown:
                return ""
            text = self._decoder.decode(self._tokenizer.token_bytes(token))
            return self._trim(text) if self._at_start else text
        return self._trim(self._decode(ids))

    def flush(self) -> str:
        """The rest: one U+FFFD when the tokens end within a character, else nothing."""
        return self._trim(self._decoder.decode(b"", final=True))

    def _decode(self, ids: Sequence[int]) -> str:
        token_bytes, is_special = self._tokenizer.token_bytes, self._tokenizer.is_special
        skips, kept = self._skip_special, self._shown
        shown = (i for i in ids if not (skips and is_special(i) and i not in kept))
        return self._decoder.decode(b"".join(map(token_bytes, shown)))

    def _trim(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
