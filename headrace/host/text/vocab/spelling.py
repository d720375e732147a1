"""How vocabularies spell bytes: the byte-level alphabet of GPT-2, and SentencePiece's U+2581 and <0xNN>."""

import re
from collections.abc import Callable

SPACE_MARK = "\u2581"
"""Stands for a space in SentencePiece vocabularies."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_alphabet() -> dict[int, str]:
    """Printable characters stand for themselves; the other bytes for U+0100 and following, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {b: chr(b) for b in plain}
    others = (b for b in range(256) if b not in spelled)
    return spelled | {b: chr(256 + i) for i, b in enumerate(others)}


CHAR_BY_BYTE = _byte_alphabet()
BYTE_BY_CHAR = {char: byte for byte, char in CHAR_BY_BYTE.items()}

Spelling = Callable[[str], bytes]
"""From a vocabulary entry to the bytes it stands for."""


def byte_level(entry: str) -> bytes:
    """Bytes of a byte-level entry; an entry outside the alphabet stands for its own UTF-8."""
    try:
        return bytes([BYTE_BY_CHAR[char] for char in entry])
    except KeyError:
        return literal(entry)


def sentencepiece(entry: str) -> bytes:
    """Bytes of a SentencePiece entry: U+2581 is a space, <0xNN> is one byte."""
    found = _BYTE_TOKEN.match(entry)
    if found:
        return bytes([int(found.group(1), 16)])
    return literal(entry.replace(SPACE_MARK, " "))


def literal(entry: str) -> bytes:
    """The entry's own UTF-8."""
    return entry.encode("utf-8", "replace")
