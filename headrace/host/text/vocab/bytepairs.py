"""Byte-level encoding by native code: the library cuts text into words, `headrace._native` merges bytes.

The library takes a quarter of a second to make an encoder of 150 k tokens and keeps the interpreter's lock
meanwhile, which the weights then wait for; here the tables are made in a fifth of that, without the lock. The
ids are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from headrace.base.specs import TextArray
from headrace.host.text.vocab.pretokenize import WordRule
from headrace.host.text.vocab.spelling import CHAR_BY_BYTE
from headrace.host.text.vocab.vocabulary import Encoder, TooManyTokensError, counted

_WORD = "\ue000\uf8ff\ue000"
"""Stands for every word in the cutter's vocabulary, which has no other entry."""
_CONTINUING = range(0x80, 0xC0)
"""Bytes that continue a character in UTF-8; each character that is not ASCII has one."""


@dataclass(frozen=True, slots=True)
class BytePairEncoder:
    """See `Encoder`. `cutter` cuts text into words (0) and added tokens (1 and on: `added[id - 1]`).

    `unspelled`: the ASCII characters that are no token. A word of nothing else comes to no token, any other
    word to one at least. None: bytes that continue characters are no tokens either, so any word may come to
    none.
    """

    pairs: Any
    cutter: tokenizers.Tokenizer
    added: list[int]
    unspelled: str | None

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """See `Encoder`."""
        found = self.cutter.encode_batch([text], add_special_tokens=False)
        cut = counted(found, None if self.unspelled is None else most, lambda: self._most_empty(text))
        ids = self.pairs.encode(text, cut.offsets, cut.ids, self.added, most)
        if most is not None and len(ids) > most:
            raise TooManyTokensError(len(ids))
        return ids

    def token_to_id(self, text: str) -> int | None:
        """See `Encoder`."""
        return self.pairs.find(text)

    def _most_empty(self, text: str) -> int:
        """How many words of a text may come to no token: each takes an unspelled character at least."""
        return sum(map(text.count, self.unspelled or ""))


def quick_encoder(
    entries: Sequence[str], merges: Sequence[str], rule: WordRule, added: Sequence[str]
) -> Encoder | None:
    """The native encoder of a byte-level vocabulary, or None where the library's must do.

    None also for tables that are broken: the library's encoder finds out and says what is wrong. And where
    the system has no random numbers (RuntimeError), which keep texts of a hostile file from colliding.

    Args:
        entries: the vocabulary, byte-level spelling.
        merges: pairs with a space between, best first.
        rule: how text is cut into words.
        added: entries that are found in text before it is cut.
    """
    if not (isinstance(entries, TextArray) and isinstance(merges, TextArray)):
        return None
    try:
        native: Any = import_module("headrace._native")
        pairs = native.BytePairs(entries.blob, entries.ends, merges.blob, merges.ends, rule.whole_words)
    except (ImportError, ValueError, RuntimeError):
        return None
    cutter = tokenizers.Tokenizer(models.WordLevel({_WORD: 0}, unk_token=_WORD))
    library: Any = cutter  # its type stubs are partial
    library.pre_tokenizer = rule.cuts()
    library.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    texts = {library.token_to_id(text): text for text in added}
    if set(texts) != set(range(1, len(texts) + 1)):  # one is `_WORD`
        return None
    ids = [pairs.find(texts[i]) for i in range(1, len(texts) + 1)]
    return BytePairEncoder(pairs, cutter, ids, _unspelled(pairs))


def _unspelled(pairs: Any) -> str | None:
    """See `BytePairEncoder`. Bytes that begin a character may lack: one that continues it follows."""
    missing = [byte for byte, char in CHAR_BY_BYTE.items() if pairs.find(char) is None]
    if any(byte in _CONTINUING for byte in missing):
        return None
    return "".join(chr(byte) for byte in sorted(missing) if byte < _CONTINUING.start)
