"""Structured answers of models that think first or may call tools: where the constraint begins and ends."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig
from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.grammar import PARAM, Grammar
from headrace.base.messages import AddGroup
from headrace.base.request import Request, SamplingParams
from headrace.engine.build import build_core, open_model
from headrace.engine.chat.prompt import ChatOptions, ChatPrompt, chat_prompt
from headrace.engine.client import LocalClient
from headrace.engine.intake import Intake
from headrace.engine.llm import LLM
from headrace.engine.process.ipc import KINDS, decode, encode
from headrace.engine.text import Text
from headrace.host.text.chat import CHATML, ChatTemplate
from headrace.host.text.parts.events import Gathering, Message
from headrace.host.text.parts.splitter import PartSplitter
from headrace.host.text.tools.definitions import NO_TOOLS, ToolUse, read_use
from headrace.host.text.tools.dialect import DIALECTS
from tests.kit.scripted import scripted_checkpoint
from tests.kit.vocabs import byte_tokenizer
from tests.unit.test_tool_grammar import TOKENIZER, TOOLS, WRITTEN, Model, draw, follows

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 30}},
    "required": ["a"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Hi"}]
OPENS = CHATML + "{% if add_generation_prompt %}<think>{% endif %}{# </think> #}"
"""A template that opens the reasoning itself."""
CLOSED = CHATML + "{% if add_generation_prompt %}<think>\n\n</think>\n\n{% endif %}"
"""One that says: do not think."""
MARKED = ("hermes", "mistral", "mistral_named", "generic")
BARE = ("llama3_json", "pythonic")


def prompt_of(
    answer: Grammar, template: str = CHATML, use: ToolUse = NO_TOOLS, dialect: str = "hermes", **more: Any
) -> ChatPrompt:
    return chat_prompt(Model(dialect, template), QUESTION, ChatOptions(answer=answer, tools=use, **more))


def split(prompt: ChatPrompt, pieces: list[str]) -> Message:
    assert prompt.plan is not None
    splitter, gathering = PartSplitter(prompt.plan), Gathering()
    for piece in pieces:
        gathering.add(splitter.push(piece))
    gathering.add(splitter.flush())
    return gathering.message()


ANSWERS = (
    (Grammar.json(SCHEMA), '{"a": "x"}', '{"b": 1}'),
    (Grammar.json_object(), '{"z": [1]}', "[]"),
    (Grammar.regex("[0-9]{2}/[a-c]"), "12/b", "12/d"),
    (Grammar.choice(['say "yes"', "no"]), 'say "yes"', "yes"),
    (Grammar.lark('start: "(" start ")" | "x"'), "((x))", "((x)"),
    (Grammar.lark('root ::= "a" b\nb ::= [0-9]+'), "a42", "42"),
)


@pytest.mark.parametrize(("answer", "good", "bad"), ANSWERS)
def test_every_kind_begins_behind_the_reasoning(answer: Grammar, good: str, bad: str) -> None:
    opened = prompt_of(answer, OPENS).grammar
    for said in (f"Hm, <{bad}> is it.</think>{good}", f"\n</think>\n\n{good}", f"</think>{good}"):
        assert follows(said, opened)
    for said in (good, f"hm</think>{bad}", f"hm</think>{good} so", "hm</think>"):
        assert not follows(said, opened)
    may = prompt_of(answer, CHATML + "{# </think> #}").grammar
    assert follows(good, may)
    assert follows(f"<think>hm</think>{good}", may)
    for said in (bad, f"hm</think>{good}", f"<think>hm{good}", f"<think>hm</think>{bad}"):
        assert not follows(said, may)


def test_what_was_thought_is_told_apart_from_the_answer() -> None:
    prompt = prompt_of(Grammar.json(SCHEMA), OPENS)
    message = split(prompt, list('is it {"a": 1}?</think>{"a": "</think>"}'))
    assert (message.reasoning, message.content) == ('is it {"a": 1}?', '{"a": "</think>"}')


@pytest.mark.parametrize(
    ("template", "kwargs"),
    [(CLOSED, {}), (CHATML, {"continue_final_message": True, "add_generation_prompt": False})],
)
def test_who_has_thought_answers_at_once(template: str, kwargs: dict[str, bool]) -> None:
    told = [*QUESTION, {"role": "assistant", "content": "So:"}] if kwargs else QUESTION
    options = ChatOptions(answer=Grammar.json(SCHEMA), template_kwargs=kwargs)
    prompt = chat_prompt(Model("hermes", template), told, options)
    assert follows('{"a": "x"}', prompt.grammar)
    assert not follows('<think>hm</think>{"a": "x"}', prompt.grammar)


def test_a_model_that_does_not_think_is_held_from_the_first_token() -> None:
    answer = Grammar.json(SCHEMA)
    plain = ChatTemplate(CHATML, {})
    prompt = chat_prompt(Text(byte_tokenizer(), plain, frozenset({1})), QUESTION, ChatOptions(answer=answer))
    assert prompt.grammar == answer


@pytest.mark.parametrize("is_open", [False, True])
def test_the_budget_of_the_reasoning_holds_before_an_answer(is_open: bool) -> None:
    for budget in (0, 1, 5):
        template = OPENS if is_open else CHATML
        grammar = prompt_of(Grammar.json(SCHEMA), template, thinking_budget=budget).grammar
        for size in range(8):
            text = f"{'' if is_open else '<think>'}{'x' * size}</think>" + '{"a": "x"}'
            assert not follows(text, grammar) or size <= budget, (budget, size)
            assert follows(text, grammar) or size > budget - (not is_open), (budget, size)
        assert follows('{"a": "x"}', grammar) is not is_open


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("dialect", MARKED)
def test_a_call_may_come_in_the_place_of_an_answer(dialect: str, thinks: bool) -> None:
    use = read_use(TOOLS)
    prompt = prompt_of(Grammar.json(SCHEMA), OPENS if thinks else CHATML, use, dialect)
    lead = "hm</think>" if thinks else ""
    call, answer = WRITTEN[dialect], '{"a": "x"}'
    assert follows(lead + call, prompt.grammar)
    assert follows(lead + answer, prompt.grammar)
    for said in ("Hello", answer + call, call + answer, call.replace("city", "town"), '{"b": 1}'):
        assert not follows(lead + said, prompt.grammar)
    message = split(prompt, list(lead + call))
    assert (message.content, [c.name for c in message.calls]) == ("", ["weather"])
    assert message.calls[0].is_whole


@pytest.mark.parametrize("dialect", MARKED)
def test_a_mark_within_an_answer_is_no_call_wherever_it_is_cut(dialect: str) -> None:
    prompt = prompt_of(Grammar.json(SCHEMA), CHATML, read_use(TOOLS), dialect)
    said = ' {"a": ' + json.dumps(WRITTEN[dialect]) + "} "
    for i in range(len(said)):
        for j in range(i, len(said), 7):
            message = split(prompt, [said[:i], said[i:j], said[j:]])
            assert (message.content, message.calls) == (said, [])
    several = "\n".join([WRITTEN["hermes"]] * 2)
    for i in range(len(several)):
        message = split(prompt_of(Grammar.json(SCHEMA), CHATML, read_use(TOOLS)), [several[:i], several[i:]])
        assert (message.content, len(message.calls)) == ("", 2)


@pytest.mark.parametrize("dialect", MARKED)
def test_what_is_drawn_is_one_or_the_other(dialect: str) -> None:
    prompt = prompt_of(Grammar.json(SCHEMA), CHATML + "{# </think> #}", read_use(TOOLS), dialect)
    kinds = set()
    for seed in range(16):
        said, is_over = draw(prompt.grammar, seed)
        if not is_over:
            continue
        text = said.decode("utf-8", "replace")
        rng = Random(seed)
        cut = sorted(rng.choices(range(len(text) + 1), k=3))
        pieces = [text[a:b] for a, b in zip([0, *cut], [*cut, len(text)], strict=True)]
        message = split(prompt, pieces)
        kinds.add(bool(message.calls))
        if message.calls:
            assert message.content == ""
        else:
            assert list(json.loads(message.content)) == ["a"]
    assert kinds


@pytest.mark.parametrize("dialect", BARE)
def test_calls_without_a_mark_do_not_go_with_an_answer(dialect: str) -> None:
    with pytest.raises(RequestError, match="without a mark") as caught:
        prompt_of(Grammar.json(SCHEMA), use=read_use(TOOLS), dialect=dialect)
    assert caught.value.param == "tools"
    silent = prompt_of(Grammar.json(SCHEMA), use=read_use(TOOLS, "none"), dialect=dialect)
    assert follows('{"a": ""}', silent.grammar)


@pytest.mark.parametrize("dialect", DIALECTS.names())
def test_a_call_that_must_come_leaves_no_room_for_an_answer(dialect: str) -> None:
    with pytest.raises(RequestError, match="exclude each other") as caught:
        prompt_of(Grammar.json(SCHEMA), use=read_use(TOOLS, "required"), dialect=dialect)
    assert caught.value.param == "tools"


def test_a_grammar_that_grows_too_large_by_its_lead_is_refused_by_the_right_name() -> None:
    answer = Grammar.regex("a" * (256 << 10))
    with pytest.raises(RequestError, match="limit 262144") as caught:
        prompt_of(answer, OPENS)
    assert caught.value.param == PARAM


@pytest.mark.parametrize("size", [200, 100_000])
@pytest.mark.parametrize(
    "refused",
    [
        ChatOptions(answer=Grammar.regex("a" * (256 << 10))),
        ChatOptions(answer=Grammar.json(SCHEMA), thinking_budget=-1),
        ChatOptions(answer=Grammar.json(SCHEMA), tools=read_use(TOOLS, "required")),
    ],
)
def test_a_conversation_that_cannot_fit_is_refused_for_that_whatever_its_grammar(
    refused: ChatOptions, size: int
) -> None:
    """Too long by its tokens, or by its bytes alone."""
    intake = Intake(Model("hermes", OPENS), TOKENIZER.vocab_size, 128, 7)
    options = replace(refused.of(SamplingParams()), answer=refused.answer)
    with pytest.raises(RequestError) as caught:
        intake.chat(QUESTION, options)
    assert caught.value.code != ContextLengthError.code
    with pytest.raises(ContextLengthError, match=r"at least \d+ tokens; the context limit is 128") as caught:
        intake.chat([{"role": "user", "content": "x" * size}], options)
    assert (caught.value.http_status, caught.value.code) == (400, "context_length_exceeded")


def test_the_whole_grammar_survives_the_wire() -> None:
    grammar = prompt_of(Grammar.json(SCHEMA), OPENS, read_use(TOOLS)).grammar
    assert grammar is not None
    assert grammar.lead
    sampling = SamplingParams(structured=grammar, seed=1)
    group = AddGroup(requests=(Request(request_id="x", prompt_ids=(1,), sampling=sampling),))  # type: ignore[arg-type]
    assert decode(KINDS.index(AddGroup), encode(group)[5:]) == group


def test_a_model_thinks_and_then_answers() -> None:
    """The whole way: what the model likes to say, its end mark, and only then the schema."""
    ids = {mark: TOKENIZER.token_id(mark) or 0 for mark in ("<think>", "</think>")}
    says = {
        ids["<think>"]: ord("h"),
        ord("h"): ord("m"),
        ord("m"): ids["</think>"],
        ids["</think>"]: ord("y"),
    }
    config = EngineConfig(
        model=ModelConfig(model=str(scripted_checkpoint(says))),
        device=DeviceConfig(threads=1),
        kv=KVConfig(num_blocks=64),
    )
    text = Text(TOKENIZER, ChatTemplate(OPENS, {}), frozenset(TOKENIZER.end_ids))
    opened = replace(open_model(config, with_text=False), text=text)
    with LLM.over(opened, LocalClient(build_core(opened, text=lambda: text), {})) as llm:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        bound = Grammar.json(schema, whitespace="", additional_properties=False)
        params = SamplingParams(temperature=0.0, max_tokens=60, structured=bound)
        first, second = llm.chat([QUESTION, QUESTION], [params, replace(params, structured=None)])
        said, free = first.choices[0].message, second.choices[0].message
        assert said is not None
        assert free is not None
        assert (said.reasoning, json.loads(said.content)) == ("hm", {"n": 0})
        assert first.finish_reason == "stop"
        assert free.content.startswith("yyyy")
