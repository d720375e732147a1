"""Answers held to calls: in every dialect, what is drawn parses back into calls that follow their schemas."""

import json
from functools import cache

import jsonschema
import numpy as np
import pytest

from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar
from headrace.engine.chat.grammar import chat_grammar
from headrace.engine.chat.prompt import ChatOptions, chat_prompt
from headrace.engine.text import Text
from headrace.host.grammar.compiler import Compiler, GrammarVocabulary
from headrace.host.grammar.matcher import Matcher
from headrace.host.text.chat import CHATML, ChatTemplate
from headrace.host.text.parts.events import Gathering, Message
from headrace.host.text.parts.splitter import PartSplitter, ReasoningMarks, SplitPlan
from headrace.host.text.tools.definitions import ToolUse, read_use
from headrace.host.text.tools.dialect import DIALECTS
from tests.kit.vocabs import byte_tokenizer

TOKENIZER = byte_tokenizer(added=("<tool_call>", "</tool_call>", "<think>", "</think>"))
THINK = ReasoningMarks(begin="<think>", end="</think>")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
    },
    "required": ["unit", "city"],
    "$defs": {"tag": {"type": "string", "pattern": "^[a-c]{1,3}$"}},
}
OPTIONAL = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"type": "integer", "maximum": 9}},
}
SCHEMAS = {"weather": SCHEMA, "some": OPTIONAL, "none": {"type": "object", "additionalProperties": False}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "some", "parameters": OPTIONAL}},
    {"type": "function", "function": {"name": "none"}},
]


class Model(Text):
    """The text side of a model that speaks a given dialect."""

    def __init__(self, dialect: str, template: str = CHATML) -> None:
        super().__init__(TOKENIZER, ChatTemplate(template, {}), frozenset(TOKENIZER.end_ids))
        self.__dict__["dialect"] = DIALECTS.get(dialect)


@cache
def compiler() -> Compiler:
    return Compiler(GrammarVocabulary(TOKENIZER, TOKENIZER.vocab_size, TOKENIZER.end_ids))


def plan_of(dialect: str, use: ToolUse, *, thinks: bool = False, is_open: bool = False) -> SplitPlan:
    return SplitPlan(
        calls=DIALECTS.get(dialect),
        names=use.names,
        certain=use.needs_grammar,
        reasoning=THINK if thinks else None,
        in_reasoning=is_open,
    )


def matcher(grammar: Grammar | None) -> Matcher:
    assert grammar is not None
    return compiler().compile(grammar)


def draw(grammar: Grammar | None, seed: int, most: int = 600) -> tuple[bytes, bool]:
    """Bytes of an answer drawn at random, and whether it ended; closing characters are likelier."""
    rng, walk = np.random.default_rng(seed), matcher(grammar)
    mask = np.zeros(compiler().vocabulary.words, np.uint32)
    weights = np.ones(TOKENIZER.vocab_size)
    weights[list(TOKENIZER.end_ids)] = 300
    for char in b'"]})':
        weights[char] = 40
    for char in range(128, 256):
        weights[char] = 0.01
    said = b""
    for _ in range(most):
        walk.inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        assert walk.error is None
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(weights)]
        odds = weights * bits
        token = int(rng.choice(len(odds), p=odds / odds.sum()))
        if token in TOKENIZER.end_ids:
            return said, True
        said += TOKENIZER.token_bytes(token)
        walk.advance([token])
    return said, False


def split(plan: SplitPlan, text: str) -> Message:
    splitter, gathering = PartSplitter(plan), Gathering()
    for char in text:
        gathering.add(splitter.push(char))
    gathering.add(splitter.flush())
    return gathering.message()


def follows(text: str, grammar: Grammar | None) -> bool:
    """Whether an answer is one that the grammar allows, to the end."""
    walk = matcher(grammar)
    walk.advance(TOKENIZER.encode(text, add_special=False))
    return walk.error is None and walk.is_complete


@pytest.mark.parametrize("dialect", DIALECTS.names())
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_what_must_be_calls_is_calls(dialect, choice):
    use = read_use(TOOLS, choice)
    plan = plan_of(dialect, use)
    grammar = chat_grammar(Model(dialect), use, plan, None)
    ended = 0
    for seed in range(12):
        said, is_over = draw(grammar, seed)
        message = split(plan, said.decode("utf-8", "replace"))
        ended += is_over
        assert message.content.strip() == "" or not is_over
        assert message.calls or not is_over
        for call in message.calls:
            assert call.name in use.names
            assert call.is_whole or not is_over
            if call.is_whole:
                jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        if not use.parallel:
            assert len(message.calls) <= 1
    assert ended > 4


WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}\n</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {"city": "Rome", "unit": "C"}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}]',
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "Rome", "unit": "C"}',
    "pythonic": '[weather(city="Rome", unit="C")]',
}
WRITTEN["generic"] = WRITTEN["hermes"]


@pytest.mark.parametrize("dialect", DIALECTS.names())
def test_strict_tools_leave_text_free_and_hold_calls(dialect):
    use = read_use(TOOLS)
    assert (use.mode, use.needs_grammar) == ("auto", True)
    grammar = chat_grammar(Model(dialect), use, plan_of(dialect, use), None)
    call = WRITTEN[dialect]
    assert follows("Hello, it is (21) degrees.", grammar)
    assert follows(call, grammar)
    assert not follows(call.replace("city", "town"), grammar)
    assert not follows(call.replace("weather", "other"), grammar)
    if DIALECTS.get(dialect).begins and dialect not in {"llama3_json", "pythonic"}:
        assert follows(f"Let me see.\n{call}", grammar)


@pytest.mark.parametrize("dialect", DIALECTS.names())
@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_may_come_before_calls(dialect, is_open):
    use = read_use(TOOLS, "required")
    plan = plan_of(dialect, use, thinks=True, is_open=is_open)
    grammar = chat_grammar(Model(dialect), use, plan, None)
    said = f"{'' if is_open else '<think>'}Rome <it> is.</think>\n\n{WRITTEN[dialect]}"
    assert follows(said, grammar)
    assert not follows(said + " so", grammar)
    message = split(plan, said)
    assert (message.reasoning, message.content, len(message.calls)) == ("Rome <it> is.", "", 1)
    if not is_open:
        assert follows(WRITTEN[dialect], grammar)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_budget_ends_reasoning(is_open):
    """At most so many tokens, then the end mark and nothing else."""
    use = read_use(None)
    plan = plan_of("hermes", use, thinks=True, is_open=is_open)
    lead = "" if is_open else "<think>"
    for budget in (0, 1, 5):
        grammar = chat_grammar(Model("hermes"), use, plan, budget)
        for size in range(8):
            text = f"{lead}{'x' * size}</think>done"
            assert not follows(text, grammar) or size <= budget, (budget, size)
            assert follows(text, grammar) or size > budget - (not is_open), (budget, size)
        assert is_open or follows("no thought", grammar)


def test_a_budget_needs_reasoning():
    question = [{"role": "user", "content": "Hi"}]
    for text, budget, words in (
        (Text(byte_tokenizer(), ChatTemplate(CHATML, {}), frozenset()), 5, "does not reason"),
        (Model("hermes"), -1, "must be in"),
        (Text(byte_tokenizer(), ChatTemplate(CHATML + "{# </think> #}", {}), frozenset()), 5, "one token"),
    ):
        with pytest.raises(RequestError, match=words) as caught:
            chat_prompt(text, question, ChatOptions(thinking_budget=budget))
        assert caught.value.param == "thinking_token_budget"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 999_999_937}}},
        {"type": "object", "patternProperties": {f"^a{i}": {"type": "string"} for i in range(64)}},
    ],
)
def test_schemas_that_ask_for_too_much_are_refused(schema):
    """Chapter 16: the limits of structured output hold for tools as well."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    options = ChatOptions(tools=read_use(tools, "required"))
    with pytest.raises(RequestError, match="limit") as caught:
        chat_prompt(Model("hermes"), [{"role": "user", "content": "Hi"}], options)
    assert caught.value.param == "tools"


def test_a_name_that_python_does_not_take_is_refused():
    schema = {"type": "object", "properties": {"from": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    options = ChatOptions(tools=read_use(tools, "required"))
    with pytest.raises(RequestError, match="'from' is no argument"):
        chat_prompt(Model("pythonic"), [{"role": "user", "content": "Hi"}], options)
