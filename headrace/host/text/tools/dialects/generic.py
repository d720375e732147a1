"""For templates that know no tools: they are told in words, and calls are asked for in the hermes form.

Calls and results of earlier turns are written as text too, so that such a conversation renders with any
template.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from headrace.host.text.parts.reader import CallReader, Calls, FrameReader
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.dialect import Json, Written, call_object, long_id
from headrace.host.text.tools.dialects.hermes import BEGIN, END
from headrace.host.text.tools.dialects.hermes import DIALECT as HERMES
from headrace.host.text.tools.grammar import CallRules, Spell

_TELL = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n"
    "</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    f"{BEGIN}{END} XML tags:\n{BEGIN}\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n'
    f"{END}"
)
_IS_RESULT = " is_result"


class Generic:
    """Hermes by instruction."""

    begins: tuple[str, ...] = (BEGIN,)
    bare = ""
    forgiven = "{"
    """Models leave the marks out at times: an object that calls a known tool is a call all the same."""
    new_id: Callable[[], str] = staticmethod(long_id)

    def reads(self, written: Written) -> bool:
        """Never: it is what is left when no other dialect is found."""
        del written
        return False

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """As hermes."""
        return HERMES.rules(tools, spell)

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """As hermes."""
        del begin
        return FrameReader(calls, end=END)

    def conversation(self, messages: Sequence[Json], tools: Sequence[Json]) -> tuple[list[Json], list[Json]]:
        """Tools into the system message, calls and results into text."""
        told: list[Json] = []
        for message in messages:
            if message.get("role") == "tool":
                _add_result(told, message)
            elif message.get("tool_calls"):
                told.append(_with_calls_as_text(message))
            else:
                told.append(dict(message))
        for message in told:
            message.pop(_IS_RESULT, None)
        if tools:
            text = _TELL.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))
            if told and told[0].get("role") == "system":
                told[0]["content"] = f"{_text_of(told[0].get('content'))}\n\n{text}"
            else:
                told.insert(0, {"role": "system", "content": text})
        return told, []


def _with_calls_as_text(message: Json) -> Json:
    calls = [call_object(_function_of(call)) for call in message["tool_calls"]]
    lines = [*filter(None, [_text_of(message.get("content"))]), *(f"{BEGIN}\n{c}\n{END}" for c in calls)]
    rest = {k: v for k, v in message.items() if k != "tool_calls"}
    return {**rest, "content": "\n".join(lines)}


def _add_result(told: list[Json], message: Json) -> None:
    """Results that follow each other are one turn of the user's."""
    text = f"<tool_response>\n{_text_of(message.get('content'))}\n</tool_response>"
    if told and told[-1].get(_IS_RESULT):
        told[-1]["content"] += f"\n{text}"
    else:
        told.append({"role": "user", "content": text, _IS_RESULT: True})


def _function_of(call: Any) -> Json:
    inner: Any = cast("Json", call).get("function") if isinstance(call, dict) else None
    return cast("Json", inner) if isinstance(inner, dict) else {}


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return "".join(str(cast("Json", p).get("text", "")) for p in parts if isinstance(p, dict))
    return content if isinstance(content, str) else ""


DIALECT = Generic()
