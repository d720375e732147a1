"""One JSON value read as it comes: constant work per character, the first wrong character ends it.

A pushdown automaton over the grammar of RFC 8259, with one kindness: control characters in strings, which
models write and the grammar forbids, are escaped on the way.
"""

import json
import re
from enum import Enum, auto

MAX_DEPTH = 64
MAX_NUMBER_CHARS = 256
SPACE = " \t\n\r"

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_CHARS = frozenset("+-.eE0123456789")
_WORDS = ("true", "false", "null")


class Status(Enum):
    """How far a reader is."""

    OPEN = auto()
    DONE = auto()
    FAILED = auto()


class _At(Enum):
    """What may come next."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    NEXT_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    WORD = auto()


_CLOSING = frozenset(
    {
        ("{", _At.KEY_OR_END, "}"),
        ("{", _At.NEXT_OR_END, "}"),
        ("[", _At.VALUE_OR_END, "]"),
        ("[", _At.NEXT_OR_END, "]"),
    }
)


class JsonValue:
    """Reads one value, white space before it included.

    Attributes:
        status: DONE after its last character; a number ends before the first character that is not its own.
        pieces: its text so far, to be taken by whoever reads; joined, it is what `json.loads` takes.
        opens: the value's first character; empty before it.
    """

    def __init__(self) -> None:
        self.status = Status.OPEN
        self.pieces: list[str] = []
        self.opens = ""
        self._at = _At.VALUE
        self._stack = ""
        self._is_key = False
        self._atom = ""
        self._hex_left = 0

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        while pos < len(text) and self.status is Status.OPEN:
            if self._at is _At.STRING:
                pos = self._string(text, pos)
            elif self._at is _At.NUMBER or self._at is _At.WORD:
                pos = self._more_atom(text[pos], pos)
            elif self._take(text[pos]):
                pos += 1
        return pos

    def _take(self, char: str) -> bool:
        """One character outside strings, numbers and words; False: it is not the value's."""
        at = self._at
        if at is _At.ESCAPE or at is _At.HEX:
            return self._escaped(char)
        if char in SPACE:
            if self._stack:
                self.pieces.append(char)
            return True
        if (self._stack[-1:], at, char) in _CLOSING:
            return self._close(char)
        return self._structure(at, char)

    def _structure(self, at: _At, char: str) -> bool:
        if at is _At.COLON:
            return self._expect(char == ":", char, _At.VALUE)
        if at is _At.NEXT_OR_END:
            return self._expect(char == ",", char, _At.KEY if self._stack[-1] == "{" else _At.VALUE)
        if at is _At.KEY or at is _At.KEY_OR_END:
            self._is_key = True
            return self._expect(char == '"', char, _At.STRING)
        return self._begin(char)

    def _begin(self, char: str) -> bool:
        """The first character of a value."""
        self.opens = self.opens or char
        self._is_key = False
        if char in "{[":
            if len(self._stack) == MAX_DEPTH:
                return self._fail()
            self._stack += char
            return self._expect(True, char, _At.KEY_OR_END if char == "{" else _At.VALUE_OR_END)
        if char == '"':
            return self._expect(True, char, _At.STRING)
        self._atom = char
        if char in "-0123456789":
            return self._expect(True, char, _At.NUMBER)
        return self._expect(char in "tfn", char, _At.WORD)

    def _expect(self, is_right: bool, char: str, then: _At) -> bool:
        if not is_right:
            return self._fail()
        self.pieces.append(char)
        self._at = then
        return True

    def _close(self, char: str) -> bool:
        self.pieces.append(char)
        self._stack = self._stack[:-1]
        self._end_value()
        return True

    def _end_value(self) -> None:
        self._at = _At.NEXT_OR_END
        if not self._stack:
            self.status = Status.DONE

    def _string(self, text: str, pos: int) -> int:
        plain = _PLAIN.match(text, pos)
        end = plain.end() if plain else pos
        if end > pos:
            self.pieces.append(text[pos:end])
        if end == len(text):
            return end
        char = text[end]
        if char == "\\":
            self._at = _At.ESCAPE
        elif char == '"':
            if self._is_key:
                self._at = _At.COLON
            else:
                self._end_value()
        self.pieces.append(char if char in '"\\' else json.dumps(char)[1:-1])
        return end + 1

    def _escaped(self, char: str) -> bool:
        if self._at is _At.HEX:
            self._hex_left -= 1
            return self._expect(
                char in "0123456789abcdefABCDEF", char, _At.HEX if self._hex_left else _At.STRING
            )
        self._hex_left = 4
        return self._expect(char in '"\\/bfnrtu', char, _At.HEX if char == "u" else _At.STRING)

    def _more_atom(self, char: str, pos: int) -> int:
        if self._at is _At.NUMBER:
            if char not in _NUMBER_CHARS:
                if _NUMBER.fullmatch(self._atom):
                    self._end_value()
                else:
                    self._fail()
                return pos
            self._atom += char
            if len(self._atom) > MAX_NUMBER_CHARS:
                self._fail()
                return pos
        else:
            self._atom += char
            if not any(word.startswith(self._atom) for word in _WORDS):
                self._fail()
                return pos
        self.pieces.append(char)
        if self._atom in _WORDS:
            self._end_value()
        return pos + 1

    def _fail(self) -> bool:
        self.status = Status.FAILED
        return False
