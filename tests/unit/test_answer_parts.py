"""An answer with tool calls on its way out: finish reasons at every length, steps of any size, marks that are
special tokens, prompts of every dialect."""

import json

import pytest

from headrace.base.errors import RequestError
from headrace.base.request import FinishReason, SamplingParams
from headrace.base.step import Delta
from headrace.engine.chat.prompt import ChatOptions, chat_prompt
from headrace.engine.intake import Ask, Intake
from headrace.engine.output import Answer
from headrace.engine.text import Text
from headrace.host.text.chat import CHATML, ChatTemplate
from headrace.host.text.parts.events import Gathering
from headrace.host.text.parts.splitter import ReasoningMarks, SplitPlan
from headrace.host.text.tools.definitions import read_use
from headrace.host.text.tools.dialect import DIALECTS, find_dialect
from tests.kit.vocabs import byte_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "Weather in Rome?"}
HISTORY = [
    QUESTION,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21 C"},
]

TOOLS_HEAD = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}CALLS{% else %}{{ m.content }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EACH = "{% for t in m.tool_calls %}BODY{% endfor %}"
NAME, ARGUMENTS = "{{ t.function.name }}", "{{ t.function.arguments | tojson }}"
HERMES_BODY = EACH.replace(
    "BODY", f'<tool_call>\n{{"name": "{NAME}", "arguments": {ARGUMENTS}}}\n</tool_call>'
)
ONE = "{% if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls') }}{% endif %}"
LLAMA_BODY = EACH.replace("BODY", f'{ONE}{{"name": "{NAME}", "parameters": {ARGUMENTS}}}')
NINE = "{% if t.id | length != 9 %}{{ raise_exception('Tool call IDs should be 9 long') }}{% endif %}"
OBJECT = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}, "id": "{{{{ t.id }}}}"}}'
MISTRAL_BODY = f"[TOOL_CALLS][{EACH.replace('BODY', NINE + OBJECT)}]"
KEYS = "{% for k, v in t.function.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %}"
PYTHONIC_BODY = f"[{EACH.replace('BODY', f'{NAME}({KEYS})')}]"
TEMPLATES = {
    name: TOOLS_HEAD + TURNS.replace("CALLS", body)
    for name, body in (
        ("hermes", HERMES_BODY),
        ("llama3_json", LLAMA_BODY),
        ("mistral", MISTRAL_BODY),
        ("pythonic", PYTHONIC_BODY),
    )
} | {"generic": CHATML}


def text_side(template: str, **vocabulary) -> Text:
    tokenizer = byte_tokenizer(**vocabulary)
    return Text(tokenizer, ChatTemplate(template, tokenizer.special_tokens), frozenset(tokenizer.end_ids))


def rendered(text: Text, messages, options: ChatOptions) -> str:
    assert text.tokenizer is not None
    return text.tokenizer.decode(chat_prompt(text, messages, options).ids, skip_special=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_dialect_is_found_in_the_template(name):
    assert find_dialect(ChatTemplate(TEMPLATES[name], {})) is DIALECTS.get(name)


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_with_calls_render_back(name):
    """Tools, calls and results of earlier turns reach the model, in every dialect."""
    shown = rendered(text_side(TEMPLATES[name]), HISTORY, ChatOptions(tools=read_use([TOOL])))
    for piece in ("get_weather", "Weather of a city", '"city"', "Rome", "21 C"):
        assert piece in shown
    assert "get_weather" in shown[shown.index("<|im_start|>assistant") :]
    if name == "generic":
        assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>' in shown
        assert "<tool_response>\n21 C\n</tool_response>" in shown


def test_choice_none_does_not_tell_of_tools():
    text = text_side(TEMPLATES["hermes"])
    prompt = chat_prompt(text, [QUESTION], ChatOptions(tools=read_use([TOOL], "none")))
    assert prompt.plan is None
    assert prompt.ids == chat_prompt(text, [QUESTION]).ids


def test_options_that_the_template_does_not_read_are_refused_by_name():
    text = text_side(CHATML + "{{ tone }}")
    chat_prompt(text, [QUESTION], ChatOptions(template_kwargs={"tone": "dry", "enable_thinking": False}))
    chat_prompt(text, [QUESTION], ChatOptions(effort="none"))
    for options, name in (
        (ChatOptions(template_kwargs={"enable_thinking": True}), "enable_thinking"),
        (ChatOptions(effort="high"), "reasoning_effort"),
    ):
        with pytest.raises(RequestError, match=f"does not read '?{name}"):
            chat_prompt(text, [QUESTION], options)
    reads = text_side(CHATML + "{{ reasoning_effort }}")
    assert rendered(reads, [QUESTION], ChatOptions(effort="high")).endswith("high")


THINKS = (
    CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def test_reasoning_is_found_in_the_template_and_in_the_prompt():
    text = text_side(THINKS)
    plan = chat_prompt(text, [QUESTION]).plan
    assert plan is not None
    assert (plan.reasoning, plan.in_reasoning) == (ReasoningMarks(begin="<think>", end="</think>"), False)
    assert rendered(text, [QUESTION], ChatOptions(effort="none")).endswith("</think>\n\n")
    opened = chat_prompt(text_side(CHATML + "<think>\n{# </think> #}"), [QUESTION]).plan
    assert opened is not None
    assert opened.in_reasoning
    half = [QUESTION, {"role": "assistant", "content": "<think>so"}]
    on = chat_prompt(text, half, ChatOptions(template_kwargs={"continue_final_message": True})).plan
    assert on is not None
    assert on.in_reasoning
    assert chat_prompt(text_side(CHATML), [QUESTION]).plan is None


TEXT = text_side(CHATML)
SAID = 'ok <tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'


class Reader:
    """Feeds an answer as an engine would."""

    def __init__(self, text: Text = TEXT, dialect: str = "hermes", **plan) -> None:
        made = SplitPlan(calls=DIALECTS.get(dialect), names=frozenset({"get_weather"}), **plan)
        params = SamplingParams(seed=1, max_tokens=3000)
        self.prepared = Intake(text, 320, 4000, 0).prepare(Ask(prompt="Hi", params=params, plan=made))
        self.answer = Answer(self.prepared, text)
        self.gathering = Gathering()
        self.finish: list[str] = []
        self.stops: list[str] = []
        self.ids: list[int] = []

    def give(self, ids=(), **more) -> None:
        name = self.prepared.requests[0].request_id
        output, stops = self.answer.take([Delta(request_id=name, new_ids=tuple(ids), **more)])
        self.stops += stops
        for choice in output.choices if output is not None else ():
            self.gathering.add(choice.parts or ())
            self.ids += choice.token_ids
            if choice.finish_reason is not None:
                self.finish.append(choice.finish_reason)

    def result(self):
        message = self.gathering.message()
        return message.content, [(c.name, c.arguments) for c in message.calls], self.finish


def test_a_call_that_is_cut_ends_with_length_ap_5():
    """AP-5: `length` at every length; a call is told when it is whole, and then its arguments parse. What
    there is of a cut one is no text."""
    marked_at, whole_at = (SAID.index(mark) for mark in ("<tool_call>", "</tool_call>"))
    marked_at += len("<tool_call>")
    for size in range(len(SAID) + 1):
        reader = Reader()
        reader.give(SAID[:size].encode())
        reader.give(finish=FinishReason.LENGTH)
        content, calls, finish = reader.result()
        assert finish == ["length"]
        if size < whole_at:  # less than a mark is text
            assert (content, calls) == (SAID[:size] if size < marked_at else "ok", [])
        else:
            assert [(n, json.loads(a)) for n, a in calls] == [("get_weather", {"city": "Rome"})]
            assert content == "ok"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_steps_of_any_size_say_the_same(size):
    reader = Reader()
    ids = SAID.encode()
    for i in range(0, len(ids), size):
        reader.give(ids[i : i + size])
    reader.give(finish=FinishReason.STOP)
    assert reader.result() == ("ok", [("get_weather", '{"city": "Rome"}')], ["tool_calls"])


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_one_call_only_ends_the_sequence(size):
    """The engine is told to stop, and what a step computed past the call is not counted."""
    reader = Reader(single=True)
    ids = (SAID + SAID).encode()
    for i in range(0, len(ids), size):
        if not reader.stops:
            reader.give(ids[i : i + size])
    assert reader.stops == [reader.prepared.requests[0].request_id]
    reader.give(finish=FinishReason.STOP)
    assert reader.result() == ("ok", [("get_weather", '{"city": "Rome"}')], ["tool_calls"])
    assert len(reader.ids) == SAID.index("</tool_call>")


def test_marks_that_are_special_tokens_are_seen():
    """Special tokens are left out of the text, but not those that a call begins with."""
    text = text_side(CHATML, added=("[TOOL_CALLS]",), token_type=None)
    assert text.tokenizer is not None
    mark = text.tokenizer.token_id("[TOOL_CALLS]")
    assert mark is not None
    for special in (False, True):
        if special:
            types = [1] * 260 + [3] * 5
            text = text_side(CHATML, added=("[TOOL_CALLS]",), token_type=types)
            assert text.tokenizer is not None
            assert text.tokenizer.is_special(mark)
        reader = Reader(text, "mistral")
        reader.give([mark, *b'[{"name": "get_weather", "arguments": {}}]'])
        reader.give(finish=FinishReason.STOP)
        assert reader.result() == ("", [("get_weather", "{}")], ["tool_calls"])
        assert text.special_ids(["[TOOL_CALLS]", "nothing"]) == (
            frozenset({mark}) if special else frozenset()
        )
