"""Newer Mistral: `[TOOL_CALLS]name[ARGS]{…}`, once per call; it is read as `mistral` reads both forms."""

from collections.abc import Callable, Sequence

from headrace.base.grammar import lark_string
from headrace.host.text.parts.reader import CallReader, Calls
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.dialect import Json, Written
from headrace.host.text.tools.dialects.mistral import ARGS, BEGIN, short_id
from headrace.host.text.tools.dialects.mistral import DIALECT as MISTRAL
from headrace.host.text.tools.grammar import CallRules, Spell, arguments_rules


class MistralNamed:
    """A mark, a name, a mark, arguments."""

    begins: tuple[str, ...] = (BEGIN,)
    bare = ""
    forgiven = ""
    new_id: Callable[[], str] = staticmethod(short_id)

    def reads(self, written: Written) -> bool:
        """Both marks."""
        return BEGIN in written.call and ARGS in written.call

    def conversation(self, messages: Sequence[Json], tools: Sequence[Json]) -> tuple[list[Json], list[Json]]:
        """As mistral."""
        return MISTRAL.conversation(messages, tools)

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """A name and its arguments."""
        made = [f"{lark_string(t.name)} {spell(ARGS)} call_arguments_{i}" for i, t in enumerate(tools)]
        return CallRules(call=f"({' | '.join(made)})", rules=arguments_rules(tools), mark=BEGIN)

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """As mistral."""
        return MISTRAL.reader(calls, begin)


DIALECT = MistralNamed()
