"""Grammars of answers that must call tools, may call them by their schemas only, or must end their reasoning.

Written in Lark for `host/grammar`. A dialect says how one call looks (`CallRules`); here calls, text and
reasoning are put together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar, lark_string, schema_text
from headrace.host.grammar.schema import check_schema
from headrace.host.text.parts.splitter import ReasoningMarks
from headrace.host.text.tools.definitions import Tool

MAX_CALLS = 16
"""Most calls of an answer that is held to calls."""
WHITESPACE = r"\x20"
"""Between the parts of arguments, at most: a model that likes white space must not go on for ever."""
_ANY = "/(?s:.*)/"

Spell = Callable[[str], str]
"""A text as a Lark expression: a literal, or the token where it is a special one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """How a dialect writes calls, as Lark expressions."""

    call: str
    """One call, without the mark before it."""
    rules: tuple[str, ...]
    """The rules that `call` uses; their names begin with `call_`."""
    mark: str = ""
    """The text that calls begin with, where there is one."""
    repeats: bool = True
    """The mark stands before each call; else once, before all of them."""
    bare: str = ""
    """The character that an answer begins with when it is calls, where there is no mark."""
    between: str = ""
    """An expression for what stands between calls; empty: nothing."""
    opens: str = ""
    """An expression for what stands before all calls, behind the mark."""
    closes: str = ""
    """An expression for what stands behind all calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The reasoning of an answer: its marks, whether the prompt opened it, the most tokens of it."""

    marks: ReasoningMarks
    is_open: bool
    budget: int | None = None


def objects(tools: Sequence[Tool], arguments_key: str = "arguments") -> tuple[str, tuple[str, ...]]:
    """The expression and the rules of calls spelled as objects, name first."""
    head = [lark_string(f'{{"name": "{t.name}", "{arguments_key}": ') for t in tools]
    rules = tuple(f'call_{i}: {text} call_arguments_{i} "}}"' for i, text in enumerate(head))
    return f"({_either(f'call_{i}' for i in range(len(tools)))})", rules + arguments_rules(tools)


def arguments_rules(tools: Sequence[Tool]) -> tuple[str, ...]:
    """A rule `call_arguments_N` for each tool: an object that follows its schema."""
    return tuple(f"call_arguments_{i}: %json {arguments_schema(t)}" for i, t in enumerate(tools))


def arguments_schema(tool: Tool) -> str:
    """The schema of a tool's arguments; what it does not name is not allowed, unless it says so.

    Raises:
        RequestError: the schema asks for too much.
    """
    empty: dict[str, Any] = {"properties": {}}
    schema: dict[str, Any] = {"type": "object", **(tool.parameters or empty)}
    text = schema_text(schema, whitespace=WHITESPACE, additional_properties=False)
    check_schema(text)
    return text


def calls_grammar(rules: CallRules, spell: Spell, *, single: bool, thinking: Thinking | None) -> Grammar:
    """Calls and nothing else, behind reasoning that may come before."""
    return Grammar.lark(_whole(_calls(rules, spell, single=single), rules.rules, spell, thinking))


def answer_grammar(
    answer: Grammar, rules: CallRules | None, spell: Spell, *, single: bool, thinking: Thinking | None
) -> Grammar:
    """A structured answer, or calls where there are rules for them, behind reasoning that may come before.

    Raises:
        RequestError: calls begin like any other text, so nothing tells them from the answer.
    """
    if rules is None:
        return replace(answer, lead="" if thinking is None else _whole("@answer", (), spell, thinking))
    if not rules.mark:
        raise RequestError(
            "this model writes calls without a mark before them, so nothing would tell them from a "
            "structured answer: leave one of them out, or set tool_choice none",
            param="tools",
        )
    calls = _calls(rules, spell, single=single)
    return replace(answer, lead=_whole(f"({calls} | @answer)", rules.rules, spell, thinking))


def text_or_calls_grammar(
    rules: CallRules, spell: Spell, *, single: bool, thinking: Thinking | None
) -> Grammar:
    """Text as the model likes, and calls that follow their schemas."""
    if not rules.mark:
        calls = _several(rules.call, rules.between, single)
        prose = rf"PROSE: /(?s:\s*([^\s\{rules.bare}].*)?)/"
        start = f"({rules.opens} {calls} {rules.closes} | PROSE)"
        return Grammar.lark(_whole(start, (*rules.rules, prose), spell, thinking))
    mark = spell(rules.mark)
    if mark.startswith("<"):
        lead, more = f"(TEXT? {mark})", ("TEXT: /(?s:.+)/",)
    else:
        lead, more = "lead", (f"lead[suffix={mark}]: {_ANY}", "TEXT: /(?s:.+)/")
    times = "?" if single or not rules.repeats else f"{{0,{MAX_CALLS}}}"
    calls = rules.call if rules.repeats else _several(rules.call, rules.between, single)
    body = f"{rules.opens} {calls} {rules.closes}"
    whole = _whole(f"({lead} {body}){times} TEXT?", (*rules.rules, *more), spell, thinking)
    return Grammar.lark(whole)


def budget_grammar(begins: Iterable[str], spell: Spell, thinking: Thinking) -> Grammar:
    """Reasoning of limited length, then anything; `begins` are the marks of calls, maybe special tokens."""
    tokens = [t for t in map(spell, begins) if t.startswith("<")]
    first, later = "FIRST: /(?s:.+)/", "LATER: /(?s:.+)/"
    if not thinking.is_open:  # what begins like reasoning is reasoning, or the limit would not hold
        first += f" & ~/(?s:{_escaped(thinking.marks.begin)}.*)/"
    more = f"(({_either(tokens)}) LATER?)*" if tokens else ""
    return Grammar.lark(_whole(f"FIRST? {more}", (first, later) if tokens else (first,), spell, thinking))


def _calls(rules: CallRules, spell: Spell, *, single: bool) -> str:
    mark = spell(rules.mark) if rules.mark else ""
    if rules.repeats:
        return _several(f"{mark} {rules.call}", rules.between, single)
    return f"{mark} {rules.opens} {_several(rules.call, rules.between, single)} {rules.closes}"


def _several(call: str, between: str, single: bool) -> str:
    return call if single else f"{call} ({between} {call}){{0,{MAX_CALLS - 1}}}"


def _whole(start: str, rules: Sequence[str], spell: Spell, thinking: Thinking | None) -> str:
    lead, more = _reasoning(spell, thinking) if thinking is not None else ("", ())
    return "\n".join((f"start: {lead} {start}", *rules, *more)) + "\n"


def _reasoning(spell: Spell, thinking: Thinking) -> tuple[str, tuple[str, ...]]:
    """The expression of what may be thought first, and its rules."""
    marks, end = thinking.marks, spell(thinking.marks.end)
    space = r"SPACE: /[ \n]{1,4}/"
    if thinking.budget == 0:
        thought, rules = end, (space,)
    elif end.startswith("<"):
        limit = "" if thinking.budget is None else f"[max_tokens={_library_limit(thinking)}]"
        thought, rules = f"thought {end}", (f"thought{limit}: {_ANY}", space)
    else:
        thought, rules = "thought", (f"thought[suffix={end}]: {_ANY}", space)
    if thinking.is_open:
        return f"{thought} SPACE?", rules
    return f"({spell(marks.begin)} {thought} SPACE?)?", rules


def _library_limit(thinking: Thinking) -> int:
    """The library counts a token less where something else than reasoning might have come."""
    budget = thinking.budget or 0
    return budget if thinking.is_open else max(1, budget - 1)


def _either(expressions: Iterable[str]) -> str:
    return " | ".join(expressions)


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$/" else c for c in text)
