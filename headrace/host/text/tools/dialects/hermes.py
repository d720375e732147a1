"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once per call."""

from collections.abc import Callable

from headrace.host.text.parts.reader import CallReader, Calls, FrameReader
from headrace.host.text.tools.dialect import Written, as_given, long_id

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    """One object between marks."""

    begins: tuple[str, ...] = (BEGIN,)
    bare = "{"
    """Models leave the marks out at times: an object that calls a known tool is a call all the same."""
    new_id: Callable[[], str] = staticmethod(long_id)
    conversation = staticmethod(as_given)

    def reads(self, written: Written) -> bool:
        """The mark, then an object."""
        _, mark, rest = written.call.partition(BEGIN)
        return bool(mark) and rest.lstrip().startswith("{")

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """Objects up to the end mark."""
        del begin
        return FrameReader(calls, end=END)


DIALECT = Hermes()
