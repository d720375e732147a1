"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`; newer: `[TOOL_CALLS]name[ARGS]{…}` per call."""

import hashlib
import re
import secrets
import string
from collections.abc import Callable, Sequence
from typing import Any

from headrace.host.text.parts.json_value import SPACE, Status
from headrace.host.text.parts.reader import MAX_NAME_CHARS, Arguments, CallReader, Calls, FrameReader
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.dialect import Json, Written
from headrace.host.text.tools.grammar import CallRules, Spell, objects

BEGIN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_LETTERS = string.ascii_letters + string.digits


def short_id() -> str:
    """Mistral's templates take ids of nine letters and digits only."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def _shortened(name: Any) -> Any:
    """An id as the templates take it; the same for the same id, so that calls and results still meet."""
    if not isinstance(name, str) or re.fullmatch(r"[a-zA-Z0-9]{9}", name):
        return name
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:9]


def _with_short_ids(message: Json) -> Json:
    made = dict(message)
    if "tool_call_id" in made:
        made["tool_call_id"] = _shortened(made["tool_call_id"])
    if made.get("tool_calls"):
        made["tool_calls"] = [{**call, "id": _shortened(call.get("id"))} for call in made["tool_calls"]]
    return made


class NamedReader:
    """Reads `name[ARGS]{…}`, `name[CALL_ID]id[ARGS]{…}` or `name{…}`."""

    def __init__(self, calls: Calls) -> None:
        self.status = Status.OPEN
        self._calls = calls
        self._head = ""
        self._arguments: Arguments | None = None
        self._raw: list[str] = []

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        while pos < len(text) and self.status is Status.OPEN:
            if self._arguments is not None:
                pos = self._read(self._arguments, text, pos)
            elif text[pos] == "{":
                self._begin()
            elif self._is_head(text[pos]):
                self._head += text[pos]
                self._raw.append(text[pos])
                pos += 1
            else:
                self.status = Status.FAILED
        return pos

    def rest(self) -> str:
        """Taken text that is part of no call."""
        return "".join(self._raw)

    def cut(self) -> bool:
        """One call, which is given as soon as it is whole."""
        return self._arguments is not None

    def _is_head(self, char: str) -> bool:
        """Whether a character may stand before the arguments: a name, then texts in brackets."""
        is_known = "[" in self._head or char.isalnum() or char in "_-[" or char in SPACE
        return is_known and len(self._head) < 2 * MAX_NAME_CHARS

    def _begin(self) -> None:
        name, _, after = self._head.partition("[")
        is_framed = not after or f"[{after}".strip(SPACE).endswith(ARGS)
        self._arguments = Arguments(self._calls)
        self._arguments.name = name.strip(SPACE)
        if self._arguments.name not in self._calls.names or not is_framed:
            self.status = Status.FAILED

    def _read(self, arguments: Arguments, text: str, pos: int) -> int:
        end = arguments.push(text, pos)
        self._raw.append(text[pos:end])
        if arguments.is_given:
            self._raw.clear()
        if arguments.status is Status.DONE:
            self._raw.clear()
            if arguments.is_given:
                arguments.give()
                self._calls.end()
            else:
                self._calls.whole(arguments.name or "", arguments.text() or "{}")
        self.status = arguments.status
        return end


class EitherReader:
    """A list of objects, or a name and arguments: decided by the first character."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._inner: CallReader | None = None
        self._space: list[str] = []

    @property
    def status(self) -> Status:
        """Of the form that it is."""
        return self._inner.status if self._inner is not None else Status.OPEN

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        if self._inner is None:
            start = pos
            while pos < len(text) and text[pos] in SPACE:
                pos += 1
            self._space.append(text[start:pos])
            if pos == len(text):
                return pos
            is_object = text[pos] in "[{"
            self._inner = FrameReader(self._calls, in_list=True) if is_object else NamedReader(self._calls)
        return self._inner.push(text, pos)

    def rest(self) -> str:
        """Taken text that is part of no call."""
        return "".join(self._space) + (self._inner.rest() if self._inner is not None else "")

    def cut(self) -> bool:
        """As the form that it is."""
        return self._inner is not None and self._inner.cut()


class Mistral:
    """A mark, then calls in one of two forms."""

    begins: tuple[str, ...] = (BEGIN,)
    bare = ""
    forgiven = ""
    new_id: Callable[[], str] = staticmethod(short_id)

    def reads(self, written: Written) -> bool:
        """The mark, and no other."""
        return BEGIN in written.call and ARGS not in written.call

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """A list of objects behind one mark."""
        del spell
        call, rules = objects(tools)
        return CallRules(
            call=call, rules=rules, mark=BEGIN, repeats=False, between='", "', opens='"["', closes='"]"'
        )

    def conversation(self, messages: Sequence[Json], tools: Sequence[Json]) -> tuple[list[Json], list[Json]]:
        """Ids that come from elsewhere are made short."""
        return [_with_short_ids(m) for m in messages], list(tools)

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """Either form."""
        del begin
        return EitherReader(calls)


DIALECT = Mistral()
