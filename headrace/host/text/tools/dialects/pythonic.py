"""Llama 3.2 and 4 and others: the answer is a Python list of calls, `[name(key="value", …), …]`."""

import ast
import json
import keyword
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.errors import RequestError
from headrace.base.grammar import lark_string
from headrace.host.text.parts.json_value import Status
from headrace.host.text.parts.reader import CallReader, Calls
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.dialect import PROBE_KEY, PROBE_TOOL, Json, Written, as_given, long_id
from headrace.host.text.tools.grammar import CallRules, Spell, arguments_schema

BEGIN, END = "<|python_start|>", "<|python_end|>"
MAX_CHARS = 64 << 10
MAX_DEPTH = 32
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"true": True, "false": False, "null": None}
_CALL = re.compile(rf"\[\s*{PROBE_TOOL}\(\s*{PROBE_KEY}\s*=")


class ListReader:
    """Reads a list up to its closing bracket, strings and brackets in it; it is parsed when it is whole."""

    def __init__(self, calls: Calls) -> None:
        self.status = Status.OPEN
        self._calls = calls
        self._raw: list[str] = []
        self._size = 0
        self._open: list[str] = []
        self._quote = ""
        self._is_escaped = False
        self._head: str | None = ""
        self._whole = 0
        """Characters up to the end of the last whole call."""

    def push(self, text: str, pos: int) -> int:
        """Read from `text[pos:]`; returns the position of the first character that it did not take."""
        start = pos
        while pos < len(text) and self.status is Status.OPEN:
            if self._take(text[pos]):
                pos += 1
        self._raw.append(text[start:pos])
        if self.status is Status.DONE:
            self._parse("".join(self._raw))
        return pos

    def rest(self) -> str:
        """Taken text that is part of no call."""
        return "".join(self._raw)

    def cut(self) -> bool:
        """The list is parsed as if it ended behind its last whole call."""
        if self._whole:
            self._parse("".join(self._raw)[: self._whole] + "]")
        return self._head is None and self.status is not Status.FAILED

    def _take(self, char: str) -> bool:
        """One character; False: it cannot be of a list of calls."""
        self._size += 1
        if self._head is not None and not self._fits_head(char):
            self.status = Status.FAILED
        elif self._quote:
            if not self._is_escaped and char == self._quote:
                self._quote = ""
            self._is_escaped = char == "\\" and not self._is_escaped
        elif char in "\"'":
            self._quote = char
        elif char in "([{)]}":
            self._bracket(char)
        elif not self._open and not char.isspace():
            self.status = Status.FAILED
        if self._size > MAX_CHARS or len(self._open) > MAX_DEPTH:
            self.status = Status.FAILED
        return self.status is not Status.FAILED

    def _bracket(self, char: str) -> None:
        if char in _CLOSED_BY:
            self._open.append(_CLOSED_BY[char])
        elif not self._open or self._open.pop() != char:
            self.status = Status.FAILED
        elif not self._open:
            self.status = Status.DONE
        elif self._open == ["]"] and char == ")":
            self._whole = self._size

    def _fits_head(self, char: str) -> bool:
        """The list must open with a call of a known name: most text in brackets is told apart here."""
        self._head = f"{self._head or ''}{char}".lstrip()
        name = self._head[1:].strip()
        if char == "(":
            self._head = None
            return name[:-1].strip() in self._calls.names
        return not self._head or (
            self._head[0] == "[" and (not name or name.isidentifier()) and len(name) <= 64
        )

    def _parse(self, text: str) -> None:
        found = _calls_in(text.strip())
        if found is None or not all(name in self._calls.names for name, _ in found):
            self.status = Status.FAILED
            return
        self._raw.clear()
        for name, arguments in found:
            self._calls.whole(name, arguments)


def _calls_in(text: str) -> list[tuple[str, str]] | None:
    """Names and arguments as JSON; None: it is no list of calls with plain values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # backslashes in strings
            tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List):
            return None
        return [(_name(call), _json(_arguments(call))) for call in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _json(value: Json) -> str:
    """JSON text that can be sent: no infinite numbers, no halves of characters."""
    plain = json.loads(json.dumps(value, allow_nan=False))  # joins halves that were spelled as two escapes
    text = json.dumps(plain, ensure_ascii=False)
    text.encode()
    return text


def _name(call: ast.expr) -> str:
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
        return call.func.id
    raise ValueError(call)


def _arguments(call: ast.expr) -> Json:
    assert isinstance(call, ast.Call)
    made: Json = {}
    for given in call.keywords:
        if given.arg is None or given.arg in made:
            raise ValueError(given)
        made[given.arg] = _value(given.value)
    return made


def _value(node: ast.expr) -> Any:
    """A literal, with JSON's names for true, false and null as well as Python's."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None):
            return node.value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError(node)


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError(node)


def _call_rule(number: int, tool: Tool) -> list[str]:
    """`name(key=value, …)`: what is required, then what is not, each with its own schema.

    Raises:
        RequestError: a property's name cannot be a keyword.
    """
    schema = json.loads(arguments_schema(tool))
    shared = {k: schema[k] for k in ("$defs", "definitions", "x-guidance") if k in schema}
    properties: dict[str, Any] = schema.get("properties", {})
    required = [name for name in schema.get("required", ()) if name in properties]
    rules: list[str] = []
    optional: list[str] = []
    names = [f"call_{number}_{i}" for i in range(len(properties))]
    for rule, name in zip(names, sorted(properties, key=lambda n: n not in required), strict=True):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise RequestError(
                f"this model writes calls as Python, where {name[:64]!r} is no argument", param="tools"
            )
        inner: Json = properties[name] if isinstance(properties[name], dict) else {}
        rules.append(f"{rule}: {lark_string(name + '=')} %json {json.dumps({**inner, **shared})}")
        optional += [] if name in required else [rule]
    nexts = [*(f"{rule}_on" for rule in optional[1:]), ""][: len(optional)]
    rules += [f'{r}_on: (", " {r})? {after}' for r, after in zip(optional, nexts, strict=True)]
    said = ' ", " '.join(names[: len(required)]) + "".join(f" {r}_on" for r in optional[:1])
    if not required and optional:  # no comma before the first
        said = f"({' | '.join(f'{r} {after}' for r, after in zip(optional, nexts, strict=True))})?"
    return [f"call_{number}: {lark_string(tool.name + '(')} {said} {lark_string(')')}", *rules]


class Pythonic:
    """A list at the start of the answer."""

    begins: tuple[str, ...] = (BEGIN,)
    bare = "["
    forgiven = ""
    new_id: Callable[[], str] = staticmethod(long_id)
    conversation = staticmethod(as_given)

    def reads(self, written: Written) -> bool:
        """A list with a call in it."""
        return bool(_CALL.search(written.call))

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """Keywords in the order of the schema."""
        del spell
        made = [_call_rule(i, tool) for i, tool in enumerate(tools)]
        names = " | ".join(f"call_{i}" for i in range(len(made)))
        return CallRules(
            call=f"({names})",
            rules=tuple(rule for rules in made for rule in rules),
            bare="[",
            repeats=False,
            between=lark_string(", "),
            opens=lark_string("["),
            closes=lark_string("]"),
        )

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """A list."""
        del begin
        return ListReader(calls)


DIALECT = Pythonic()
