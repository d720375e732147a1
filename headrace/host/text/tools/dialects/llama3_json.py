"""Llama 3: the answer is `{"name": …, "parameters": {…}}`, maybe behind a tag, several parted by `;`."""

from collections.abc import Callable, Sequence

from headrace.base.grammar import lark_string
from headrace.host.text.parts.reader import CallReader, Calls, FrameReader
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.dialect import Written, as_given, long_id
from headrace.host.text.tools.grammar import CallRules, Spell, objects

TAG = "<|python_tag|>"


class Llama3Json:
    """Bare objects at the start of the answer."""

    begins: tuple[str, ...] = (TAG,)
    bare = "{"
    forgiven = ""
    new_id: Callable[[], str] = staticmethod(long_id)
    conversation = staticmethod(as_given)

    def reads(self, written: Written) -> bool:
        """Nothing but the tag stands before the object."""
        text = written.call.strip().removeprefix(TAG).lstrip()
        return text.startswith("{") and '"name"' in text

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """Bare objects."""
        del spell
        call, rules = objects(tools, "parameters")
        return CallRules(call=call, rules=rules, bare="{", repeats=False, between=lark_string("; "))

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """Objects, parted by semicolons or lines."""
        del begin
        return FrameReader(calls, separators=";")


DIALECT = Llama3Json()
