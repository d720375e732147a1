"""What a dialect is, and which one a model speaks: found in what its own chat template writes.

Nobody names a dialect. A conversation with a call in it is rendered once; the dialect is the one that knows
the text which the template wrote for the call. A template that writes neither tools nor calls gets the
generic dialect, which tells the model in words.
"""

import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.base.errors import RequestError
from headrace.base.registry import Registry
from headrace.host.text.chat import ChatTemplate
from headrace.host.text.parts.splitter import CallSyntax
from headrace.host.text.tools.definitions import Tool
from headrace.host.text.tools.grammar import CallRules, Spell

Json = dict[str, Any]

PROBE_TOOL, PROBE_KEY, PROBE_VALUE = "probe_tool", "probe_key", "probe_value"
_QUESTION = "probe_question"
_PROBE_ID = "call00001"  # nine letters and digits: some templates take no other


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a template wrote for one call of `probe_tool` with the argument `probe_key` = "probe_value"."""

    call: str
    """The assistant's turn."""


class Dialect(CallSyntax, Protocol):
    """How a family of models writes calls; one per file of `dialects`, stateless."""

    def reads(self, written: Written) -> bool:
        """Whether this is the dialect of a call that a template wrote."""
        ...

    def rules(self, tools: Sequence[Tool], spell: Spell) -> CallRules:
        """How calls of these tools are written, for a grammar.

        Raises:
            RequestError: a tool cannot be written so.
        """
        ...

    def conversation(self, messages: Sequence[Json], tools: Sequence[Json]) -> tuple[list[Json], list[Json]]:
        """Messages and tools as the template is to get them."""
        ...


DIALECTS: Registry[Dialect] = Registry("tool dialect", "headrace.host.text.tools.dialects", "DIALECT")
GENERIC = "generic"


def as_given(messages: Sequence[Json], tools: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """For dialects whose templates write tools and calls themselves."""
    return list(messages), list(tools)


def long_id() -> str:
    """The id of a call, as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


def find_dialect(template: ChatTemplate) -> Dialect:
    """The dialect of a model, by its template. Takes some renderings: keep the result."""
    written = probe(template)
    if written is not None:
        for name in DIALECTS.names():
            dialect = DIALECTS.get(name)
            if dialect.reads(written):
                return dialect
    return DIALECTS.get(GENERIC)


def probe(template: ChatTemplate) -> Written | None:
    """What the template writes for a call; None: it does not write tools, or no calls."""
    parameters = {"type": "object", "properties": {PROBE_KEY: {"type": "string", "description": "a text"}}}
    function: Json = {"name": PROBE_TOOL, "description": "a tool", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    ask: Json = {"role": "user", "content": _QUESTION}
    for arguments in ({PROBE_KEY: PROBE_VALUE}, json.dumps({PROBE_KEY: PROBE_VALUE})):
        call: Json = {"id": _PROBE_ID, "type": "function", "function": {"name": PROBE_TOOL}}
        call["function"]["arguments"] = arguments
        turn: Json = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before = template.render([ask], tools=tools)
            after = template.render([ask, turn], tools=tools, add_generation_prompt=False)
        except RequestError:
            continue
        written = after[_common(before, after) :]
        if PROBE_TOOL in before and PROBE_TOOL in written and PROBE_VALUE in written:
            return Written(call=written)
    return None


def _common(one: str, other: str) -> int:
    """Where two renderings part, at the end of the question or later."""
    place = other.find(_QUESTION) + len(_QUESTION)
    return next(
        (i for i in range(place, min(len(one), len(other))) if one[i] != other[i]), min(len(one), len(other))
    )


def call_object(function: Mapping[str, Any]) -> str:
    """A call as text, arguments as an object where they are JSON."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    call: Json = {"name": function.get("name"), "arguments": {} if arguments is None else arguments}
    return json.dumps(call, ensure_ascii=False)
