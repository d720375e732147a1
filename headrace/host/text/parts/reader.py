"""Readers of tool calls: from where a call seems to begin to where it ends, or turns out to be none.

A reader is fed text and gives calls. What it has taken and not yet given as a call is `held`: when the text
turns out to be no call, that is content, so nothing the model says is lost.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from headrace.host.text.parts.events import CallArguments, CallBegin, CallEnd, Part
from headrace.host.text.parts.json_value import SPACE, JsonValue, Status

HOLD_CHARS = 1024
"""A call is given when it is whole, so that text which only looks like one can stay content; arguments longer
than this are given as they come."""
MAX_NAME_CHARS = 256
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
"""What models call the arguments of a call."""


@dataclass(slots=True)
class Calls:
    """Gives out the calls of one answer: numbers them, names them, and knows which names there are.

    `hold_chars` is how much of a call's arguments is held until the call is whole; 0 where a grammar makes
    sure that it becomes whole.
    """

    names: Collection[str]
    new_id: Callable[[], str]
    hold_chars: int = HOLD_CHARS
    parts: list[Part] = field(default_factory=list[Part])
    count: int = 0
    num_whole: int = 0

    def begin(self, name: str) -> None:
        """A call of a tool."""
        self.parts.append(CallBegin(self.count, self.new_id(), name))
        self.count += 1

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        if text:
            self.parts.append(CallArguments(self.count - 1, text))

    def end(self) -> None:
        """The last call is whole."""
        self.num_whole += 1
        self.parts.append(CallEnd(self.count - 1))

    def whole(self, name: str, arguments: str) -> None:
        """A call at once."""
        self.begin(name)
        self.arguments(arguments)
        self.end()


class CallReader(Protocol):
    """Reads calls, from behind the mark or at the character that one begins with.

    `status` is DONE behind the last call and FAILED where the text is no call.
    """

    @property
    def status(self) -> Status:
        """How far it is."""
        ...

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        ...

    def rest(self) -> str:
        """Taken text that is part of no call, once the reader is not OPEN or the answer is over."""
        ...

    def cut(self) -> bool:
        """The answer is cut off here: gives the calls that are whole.

        Returns:
            whether a tool has been named where calls name it, so that what breaks off was meant to be a call.
        """
        ...


class Arguments:
    """A call's arguments as they come: held until the call is whole, or until they are long.

    Args:
        calls: where the call goes.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._value = JsonValue()
        self._size = 0
        self.name: str | None = None
        self.is_given = False

    @property
    def status(self) -> Status:
        """Of the value."""
        return self._value.status

    def push(self, text: str, pos: int) -> int:
        """Read; long arguments are given."""
        end = self._value.push(text, pos)
        self._size += end - pos
        if self.name is not None and self._value.opens == "{" and self._size > self._calls.hold_chars:
            self.give()
        return end

    def give(self) -> None:
        """Give what has come so far."""
        if not self.is_given:
            self.is_given = True
            self._calls.begin(cast("str", self.name))
        self._calls.arguments("".join(self._value.pieces))
        self._value.pieces.clear()

    def text(self) -> str | None:
        """The arguments as an object's JSON; None: they are none. Only for arguments that are not given."""
        text = "".join(self._value.pieces)
        if self._value.opens == "{":
            return text
        if text == "null":
            return "{}"
        return _object_in(text) if self._value.opens == '"' else None


def _object_in(text: str) -> str | None:
    """Some models write the arguments as a string of JSON."""
    inner = cast("str", json.loads(text))
    if not _is_unicode(inner):
        return None
    value = JsonValue()
    end = value.push(inner, 0)
    if value.status is Status.DONE and value.opens == "{" and not inner[end:].strip(SPACE):
        return "".join(value.pieces)
    return None


def _is_unicode(text: str) -> bool:
    """Whether it has no halves of characters, which escapes can spell."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


class ObjectReader:
    """Reads one object `{"name": …, "arguments": {…}}`, its keys in any order, others passed over."""

    def __init__(self, calls: Calls) -> None:
        self.status = Status.OPEN
        self._calls = calls
        self._arguments = Arguments(calls)
        self._seen: set[str] = set()
        self._expected = "{"
        self._value: JsonValue | Arguments | None = None
        self._what = ""
        """What the value that is read, or comes next, is: "key", "name", "arguments" or "other"."""

    @property
    def is_given(self) -> bool:
        """The call is told already, whatever follows."""
        return self._arguments.is_given

    @property
    def is_named(self) -> bool:
        """It has named a tool that there is."""
        return self._arguments.name is not None

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        while pos < len(text) and self.status is Status.OPEN:
            if self._value is None:
                if text[pos] in SPACE or self._step(text[pos]):
                    pos += 1
                continue
            pos = self._value.push(text, pos)
            if self._value.status is Status.FAILED:
                self.status = Status.FAILED
            elif self._value.status is Status.DONE:
                self._end_value(self._value)
        return pos

    def _step(self, char: str) -> bool:
        """A character between values; False: it begins a key, or is wrong."""
        expected = self._expected
        if char == '"' and expected in {"key", "key or end"}:
            self._what, self._value = "key", JsonValue()
            return False
        if char == "{" == expected:
            self._expected = "key or end"
        elif char == ":" == expected:
            self._value = self._arguments if self._what == "arguments" else JsonValue()
        elif char == "," and expected == "next or end":
            self._expected = "key"
        elif char == "}" and expected in {"next or end", "key or end"}:
            self._finish()
        else:
            self.status = Status.FAILED
        return self.status is not Status.FAILED

    def _end_value(self, value: "JsonValue | Arguments") -> None:
        self._value = None
        self._expected = "next or end"
        if isinstance(value, Arguments):
            return
        if self._what == "key":
            self._expected = ":"
            self._begin_key(cast("str", json.loads("".join(value.pieces))))
        elif self._what == "name":
            name: Any = json.loads("".join(value.pieces))
            if isinstance(name, str) and name in self._calls.names:
                self._arguments.name = name
            else:
                self.status = Status.FAILED

    def _begin_key(self, key: str) -> None:
        self._what = "name" if key == "name" else "other"
        if key in ARGUMENT_KEYS:
            self._what = "arguments"
        if self._what in self._seen:
            self.status = Status.FAILED
        elif self._what != "other":
            self._seen.add(self._what)

    def _finish(self) -> None:
        name = self._arguments.name
        if self._arguments.is_given:
            self._arguments.give()
            self._calls.end()
            self.status = Status.DONE
            return
        arguments = self._arguments.text() if "arguments" in self._seen else "{}"
        if name is None or arguments is None:
            self.status = Status.FAILED
            return
        self._calls.whole(name, arguments)
        self.status = Status.DONE


class FrameReader:
    """Reads calls as objects, one after the other or in a list, up to the frame's end.

    Args:
        calls: where they go.
        end: the text that ends the frame; empty: there is none. Models forget it, so it may be missing.
        separators: characters that may stand between calls, besides white space.
        in_list: the calls may stand in brackets.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        end: str = "",
        separators: str = "",
        in_list: bool = False,
    ) -> None:
        self.status = Status.OPEN
        self._calls = calls
        self._end = end
        self._separators = separators
        self._may_open = in_list
        self._is_list = False
        self._num_read = 0
        self._object: ObjectReader | None = None
        self._matched: int = 0
        """Characters of `end` that have come."""
        self._raw: list[str] = []

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        while pos < len(text) and self.status is Status.OPEN:
            if self._object is not None:
                pos = self._read_object(self._object, text, pos)
            elif self._take(text[pos]):
                pos += 1
        return pos

    def rest(self) -> str:
        """Taken text that is part of no call; where the answer ends within a frame, the frame is not text."""
        is_between = self.status is Status.OPEN and self._object is None and self._num_read > 0
        return "" if is_between else "".join(self._raw)

    def cut(self) -> bool:
        """Whole calls were given as they came."""
        return self._object is not None and self._object.is_named

    def _read_object(self, reader: ObjectReader, text: str, pos: int) -> int:
        end = reader.push(text, pos)
        self._raw.append(text[pos:end])
        if reader.is_given or reader.status is Status.DONE:
            self._raw.clear()
        if reader.status is Status.DONE:
            self._object = None
            self._num_read += 1
        elif reader.status is Status.FAILED:
            self._stop()
        return end

    def _take(self, char: str) -> bool:
        """A character between calls; False: it is not the frame's, or begins a call."""
        if self._matched or (self._num_read and char == self._end[:1]):
            return self._match(char)
        if char == "{":
            self._object = ObjectReader(self._calls)
            return False
        if char == "[" and self._may_open and not self._num_read:
            self._may_open, self._is_list = False, True
        elif char == "]" and self._is_list and self._num_read:
            self._is_list = False
            self._raw.clear()
            if not self._end:
                self.status = Status.DONE
            return True
        elif char not in SPACE and not (self._num_read and char in self._separators + "," * self._is_list):
            self._stop()
            return False
        self._raw.append(char)
        return True

    def _match(self, char: str) -> bool:
        if char != self._end[self._matched]:
            self._stop()
            return False
        self._matched += 1
        self._raw.append(char)
        if self._matched == len(self._end):
            self._raw.clear()
            self.status = Status.DONE
        return True

    def _stop(self) -> None:
        self.status = Status.DONE if self._num_read or self._calls_are_given() else Status.FAILED

    def _calls_are_given(self) -> bool:
        return self._object is not None and self._object.is_given
