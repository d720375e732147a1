"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once per call."""

from collections.abc import Callable, Sequence

from headrace.base.grammar import lark_string
from headrace.host.text.parts.reader import CallReader, Calls, FrameReader
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.dialect import Written, as_given, long_id
from headrace.host.text.tools.grammar import CallRules, Spell, objects

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    """One object between marks."""

    begins: tuple[str, ...] = (BEGIN,)
    bare = ""
    forgiven = "{"
    """Models leave the marks out at times: an object that calls a known tool is a call all the same."""
    new_id: Callable[[], str] = staticmethod(long_id)
    conversation = staticmethod(as_given)

    def reads(self, written: Written) -> bool:
        """The mark, then an object."""
        _, mark, rest = written.call.partition(BEGIN)
        return bool(mark) and rest.lstrip().startswith("{")

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """Objects between marks."""
        call, rules = objects(tools)
        line = lark_string("\n")
        return CallRules(call=f"{line} {call} {line} {spell(END)}", rules=rules, mark=BEGIN, between=line)

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """Objects up to the end mark."""
        del begin
        return FrameReader(calls, end=END)


DIALECT = Hermes()
