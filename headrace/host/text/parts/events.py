"""Pieces of an answer in order, and the message that they add up to.

They are made for every token of a stream, and so are not frozen: that takes three times as long. Nobody
changes them all the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Content:
    """More of the text that the model says."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """More of the text that the model thinks before it speaks; the marks around it are left out."""

    text: str


@dataclass(slots=True)
class CallBegin:
    """A tool call begins; `index` counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


@dataclass(slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text; the pieces of a call join to an object."""

    index: int
    text: str


@dataclass(slots=True)
class CallEnd:
    """A call is whole: its arguments are complete JSON. Calls that are cut short have no such piece."""

    index: int


Part = Content | Reasoning | CallBegin | CallArguments | CallEnd


@dataclass(slots=True)
class Call:
    """A tool call, gathered; `arguments` is JSON text, of an object when the call `is_whole`."""

    id: str
    name: str
    arguments: str = ""
    is_whole: bool = False


@dataclass(slots=True)
class Message:
    """An answer, gathered."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list[Call])


class Gathering:
    """Adds pieces up to a message; linear in their text."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[Call, list[str]]] = []

    def add(self, parts: Iterable[Part]) -> None:
        """Append pieces."""
        for part in parts:
            match part:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallBegin(_, name_id, name):
                    self._calls.append((Call(name_id, name), []))
                case CallArguments(index, text):
                    self._calls[index][1].append(text)
                case CallEnd(index):
                    self._calls[index][0].is_whole = True

    def message(self) -> Message:
        """The message so far."""
        for call, pieces in self._calls:
            call.arguments = "".join(pieces)
        calls = [call for call, _ in self._calls]
        return Message("".join(self._content), "".join(self._reasoning), calls)
