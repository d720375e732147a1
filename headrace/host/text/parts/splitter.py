"""Generated text into content, reasoning and tool calls, as it comes.

The result does not depend on how the text is cut: every decision is made at a character, and text whose
meaning is open is held back (the beginning of a mark; a call that is not whole; white space that may stand
before a call). Work is linear in the text: what turned out to be no call is not read again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from headrace.host.text.parts.events import CallEnd, Content, Part, Reasoning
from headrace.host.text.parts.json_value import Status
from headrace.host.text.parts.reader import HOLD_CHARS, CallReader, Calls


class CallSyntax(Protocol):
    """How a model writes tool calls.

    Attributes:
        begins: marks that a call begins with, anywhere in the content; none is a beginning of another.
        bare: characters that a call may begin with where the content begins.
        forgiven: more of them, in models that leave the mark out; not where a grammar makes them write it.
        new_id: makes the id of a call, in the form that the model's template takes.
    """

    begins: tuple[str, ...]
    bare: str
    forgiven: str
    new_id: Callable[[], str]

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """A reader of what follows a mark, or of what begins with a bare character."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """What stands before and behind the text that a model thinks."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """How the answers to one prompt are split. Immutable, shared by the choices of a request."""

    reasoning: ReasoningMarks | None = None
    in_reasoning: bool = False
    """The prompt ends within reasoning: the answer begins there."""
    shows_reasoning: bool = True
    """Off, reasoning is left out of the answer."""
    calls: CallSyntax | None = None
    names: frozenset[str] = frozenset()
    """Tools that may be called; what names another is content."""
    single: bool = False
    """The answer ends with its first call."""
    certain: bool = False
    """A grammar makes sure that calls become whole: they are given as they come."""
    whole: bool = False
    """A grammar makes sure that the answer is text or calls, never both: within a text nothing is a mark."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the splitter must see, though they may be special tokens."""
        thoughts = (self.reasoning.begin, self.reasoning.end) if self.reasoning else ()
        return (*thoughts, *(self.calls.begins if self.calls else ()))


class _Mode(Enum):
    START = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    OVER = auto()


class PartSplitter:
    """Splits one answer; what `push` and `flush` give, joined, is the whole answer.

    Args:
        plan: what there is to find.
    """

    def __init__(self, plan: SplitPlan) -> None:
        self._plan = plan
        self._mode = _Mode.START if plan.reasoning else _Mode.CONTENT
        self._parts: list[Part] = []
        self._held = ""
        """Text whose meaning is open, shorter than the longest mark."""
        self._space: list[str] = []
        """White space that is given only when text follows it."""
        self._drops_space = False
        self._at_start = True
        """Nothing but white space was content so far."""
        self._begins = plan.calls.begins if plan.calls else ()
        self._bare = plan.calls.bare if plan.calls else ""
        if plan.calls is not None and not plan.certain:
            self._bare += plan.calls.forgiven
        self._reader: CallReader | None = None
        self._begin = ""
        """What the call that is read began with, as long as none was given."""
        self._is_certain = False
        """What is read began with a mark, or has had a call: if it breaks off, it was meant to be one."""
        self._calls: Calls | None = None
        if plan.calls is not None:
            self._calls = Calls(plan.names, plan.calls.new_id, 0 if plan.certain else HOLD_CHARS)

    @property
    def num_calls(self) -> int:
        """Whole calls so far."""
        return self._calls.num_whole if self._calls is not None else 0

    @property
    def is_over(self) -> bool:
        """The answer has its one call: generating may end."""
        return self._mode is _Mode.OVER

    def push(self, text: str) -> list[Part]:
        """Pieces that the text brings."""
        if self._mode is _Mode.OVER:
            return []
        text, self._held = self._held + text, ""
        pos = 0
        while pos < len(text) and not self._held:
            if self._mode is _Mode.CONTENT:
                pos = self._content(text, pos)
            elif self._mode is _Mode.CALL:
                pos = self._call(text, pos)
            elif self._mode is _Mode.REASONING:
                pos = self._reasoning(text, pos)
            else:
                pos = self._start(text, pos)
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[Part]:
        """The rest, when the answer ends: what is held becomes what it looks like without an end.

        Args:
            is_cut: the model did not end the answer. A call that breaks off there, which began with a mark or
                has named a tool, is left out: it is none, and no text either. Right behind a call so is the
                beginning of a mark; once text was said behind the call, it is text like any other.
        """
        if self._mode is _Mode.OVER:
            return []
        rest, self._held = self._held, ""
        if is_cut and self.num_calls and self._drops_space and self._mode is _Mode.CONTENT:
            rest = ""  # nothing but white space since the call: the beginning of another one's mark
        if self._mode is _Mode.START:
            self._mode = _Mode.REASONING if self._plan.in_reasoning else _Mode.CONTENT
        if self._reader is not None:
            was_meant = is_cut and self._reader.cut()
            self._take_calls()
            rest = self._begin + self._reader.rest()
            if is_cut and (was_meant or self._is_certain):
                rest = ""
                self._space.clear()
            self._reader = None
            self._mode = _Mode.CONTENT
        self._say(rest)
        if self._mode is _Mode.CONTENT and self._space and not self._drops_space:
            self._parts.append(Content("".join(self._space)))
        return self._take()

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        if self._plan.single:
            for i, part in enumerate(parts):
                if isinstance(part, CallEnd):
                    self._mode = _Mode.OVER
                    return parts[: i + 1]
        return parts

    def _start(self, text: str, pos: int) -> int:
        """Before the answer's first word, which may be the mark of reasoning."""
        body = text[pos:].lstrip()
        if len(body) < len(text) - pos:
            self._space.append(text[pos : len(text) - len(body)])
        assert self._plan.reasoning is not None
        mark = self._plan.reasoning.begin
        if not body:
            return len(text)
        pos = len(text) - len(body)
        if body.startswith(mark):
            self._begin_reasoning()
            return pos + len(mark)
        if mark.startswith(body):
            self._held = body
        elif self._plan.in_reasoning:
            self._begin_reasoning()
        else:
            self._mode = _Mode.CONTENT
        return pos

    def _begin_reasoning(self) -> None:
        self._mode = _Mode.REASONING
        self._space.clear()
        self._drops_space = True

    def _reasoning(self, text: str, pos: int) -> int:
        assert self._plan.reasoning is not None
        mark = self._plan.reasoning.end
        found = text.find(mark, pos)
        if found < 0:
            return self._say_until(text, pos, (mark,))
        self._say(text[pos:found])
        self._space.clear()
        self._drops_space = True
        self._mode = _Mode.CONTENT
        return found + len(mark)

    def _content(self, text: str, pos: int) -> int:
        if self._plan.whole and self._calls is not None and not self._calls.num_whole:
            return self._text_or_calls(text, pos)
        if self._at_start and self._bare:
            body = text[pos:].lstrip()
            if body and body[0] in self._bare:
                self._say(text[pos : len(text) - len(body)])
                self._read_call("", body[0])
                return len(text) - len(body)
        found, mark = len(text), ""
        for begin in self._begins:
            place = text.find(begin, pos, found + len(begin) - 1)
            if 0 <= place < found:
                found, mark = place, begin
        if not mark:
            return self._say_until(text, pos, self._begins)
        self._say(text[pos:found])
        self._read_call(mark, mark)
        return found + len(mark)

    def _text_or_calls(self, text: str, pos: int) -> int:
        """Calls only where the answer begins with a mark."""
        if self._at_start:
            body = text[pos:].lstrip()
            self._say(text[pos : len(text) - len(body)])
            pos = len(text) - len(body)
            for mark in self._begins:
                if body.startswith(mark):
                    self._read_call(mark, mark)
                    return pos + len(mark)
            if any(mark.startswith(body) for mark in self._begins):
                self._held = body
                return pos
        self._say(text[pos:])
        return len(text)

    def _read_call(self, text: str, begin: str) -> None:
        assert self._plan.calls is not None and self._calls is not None  # noqa: PT018 - as it was found
        self._begin = text
        self._is_certain = bool(text)
        self._reader = self._plan.calls.reader(self._calls, begin)
        self._mode = _Mode.CALL

    def _call(self, text: str, pos: int) -> int:
        assert self._reader is not None  # the mode says so
        pos = self._reader.push(text, pos)
        self._take_calls()
        if self._reader.status is not Status.OPEN:
            rest = self._begin + self._reader.rest()
            self._begin, self._reader = "", None
            self._mode = _Mode.CONTENT
            self._say(rest)
            self._at_start = False
        return pos

    def _take_calls(self) -> None:
        """What the reader has told of calls."""
        if self._calls is None or not self._calls.parts:
            return
        self._parts += self._calls.parts
        self._calls.parts.clear()
        self._space.clear()
        self._begin = ""
        self._is_certain = True
        self._at_start = False
        self._drops_space = True

    def _say_until(self, text: str, pos: int, marks: tuple[str, ...]) -> int:
        """Say all but what may begin a mark."""
        end = len(text) - max((_overlap(text, pos, mark) for mark in marks), default=0)
        self._say(text[pos:end])
        self._held = text[end:]
        return end

    def _say(self, text: str) -> None:
        """Give text, in the mode's kind, but the white space at its end."""
        if self._drops_space:
            text = text.lstrip()
        if not text:
            return
        self._drops_space = False
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return
        said = "".join(self._space) + body
        self._space = [text[len(body) :]] if len(body) < len(text) else []
        if self._mode is not _Mode.REASONING:
            self._at_start = False
            self._parts.append(Content(said))
        elif self._plan.shows_reasoning:
            self._parts.append(Reasoning(said))


def _overlap(text: str, pos: int, mark: str) -> int:
    """Length of the longest end of `text[pos:]` that is a proper beginning of the mark."""
    for size in range(min(len(mark) - 1, len(text) - pos), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
