"""Answers taken apart: every dialect, every cut, fuzzed, linear; tool definitions; dialects by template."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.host.text.parts.events import Call, Gathering, Message
from headrace.host.text.parts.json_value import JsonValue, Status
from headrace.host.text.parts.splitter import PartSplitter, ReasoningMarks, SplitPlan
from headrace.host.text.tools.dialect import DIALECTS

THINK = ReasoningMarks(begin="<think>", end="</think>")
LONG = "z" * 1500


def plan(dialect: str | None, **more) -> SplitPlan:
    calls = DIALECTS.get(dialect) if dialect else None
    return SplitPlan(calls=calls, names=frozenset({"f", "g"}), **more)


def split(how: SplitPlan, pieces) -> Message:
    splitter, gathering = PartSplitter(how), Gathering()
    for piece in pieces:
        gathering.add(splitter.push(piece))
    gathering.add(splitter.flush())
    message = gathering.message()
    for call in message.calls:
        call.id = ""
    return message


def call(name: str, arguments: str = "{}", *, whole: bool = True) -> Call:
    return Call("", name, arguments, whole)


def said(content: str = "", *calls: Call, reasoning: str = "") -> Message:
    return Message(content, reasoning, list(calls))


HERMES = {
    'hi\n<tool_call>\n{"name": "f", "arguments": {"a": [1, 2.5e3, "x\\"}"]}}\n</tool_call>\n'
    '<tool_call>{"arguments":{},"name":"g"}</tool_call>': said(
        "hi", call("f", '{"a": [1, 2.5e3, "x\\"}"]}'), call("g")
    ),
    "x <tool_call>{bad}</tool_call> y": said("x <tool_call>{bad}</tool_call> y"),
    '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}{"name":"g"}': said(
        "", call("f", '{"a":1}'), call("g")
    ),
    '<tool_call>{"name":"f","arguments":null}</tool_cal': said("", call("f")),
    '<tool_call>{"name":"f"}</tool_cat': said("</tool_cat", call("f")),
    '<tool_call>{"name":"f","arguments":[1]}</tool_call>': said(
        '<tool_call>{"name":"f","arguments":[1]}</tool_call>'
    ),
    '<tool_call>{"name":"f","name":"g"}': said('<tool_call>{"name":"f","name":"g"}'),
    '<tool_call>{"name":"other","arguments":{}}</tool_call>': said(
        '<tool_call>{"name":"other","arguments":{}}</tool_call>'
    ),
    '<tool_call>{"name": "f", "arguments": {"a": "' + LONG + '"}}</tool_call> z': said(
        "z", call("f", '{"a": "' + LONG + '"}')
    ),
    '<tool_call>{"name": "f", "arguments": {"a": "' + LONG: said(
        "", call("f", '{"a": "' + LONG, whole=False)
    ),
    '<tool_call>{"name": "f", "arguments": {"a": "' + LONG + '"] ok': said(
        "] ok", call("f", '{"a": "' + LONG + '"', whole=False)
    ),
    '<tool_call>{"name": "f", "arguments": {"a": "1\n2\t"}}': said("", call("f", '{"a": "1\\n2\\t"}')),
    '{"name": "f", "arguments": {"a": 1}}': said("", call("f", '{"a": 1}')),
    '{"name": "Bob"} is JSON': said('{"name": "Bob"} is JSON'),
    '<tool_call>\n<tool_call>{"name":"f"}</tool_call>': said("<tool_call>", call("f")),
    "a <tool_cal": said("a <tool_cal"),
    "  lead and tail \n": said("  lead and tail \n"),
    "": said(),
}
LLAMA = {
    '{"name": "f", "parameters": {"a": 1}}; {"name":"g","parameters":{}}': said(
        "", call("f", '{"a": 1}'), call("g")
    ),
    '<|python_tag|>{"name": "f", "parameters": {"a": "é"}}': said("", call("f", '{"a": "é"}')),
    '{"x": 1} is json': said('{"x": 1} is json'),
    'see {"name":"f"}': said('see {"name":"f"}'),
    ' {"name":"f","parameters":{}} done': said("done", call("f")),
}
MISTRAL = {
    '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name":"g","arguments":{}}]': said(
        "", call("f", '{"a": 1}'), call("g")
    ),
    'ok[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}': said(
        "ok", call("f", '{"a": 1}'), call("g")
    ),
    '[TOOL_CALLS]f{"a": "' + LONG + '"}': said("", call("f", '{"a": "' + LONG + '"}')),
    "[TOOL_CALLS] nothing. Here": said("[TOOL_CALLS] nothing. Here"),
    "[TOOL_CALLS]other[ARGS]{}": said("[TOOL_CALLS]other[ARGS]{}"),
    "[TOOL_CALLS][]": said("[TOOL_CALLS][]"),
    "[TOO": said("[TOO"),
}
PYTHONIC = {
    '[f(a=1, b="x]", c=[True, None, {"k": -2}]), g()]': said(
        "", call("f", '{"a": 1, "b": "x]", "c": [true, null, {"k": -2}]}'), call("g")
    ),
    "<|python_start|>[f(a='it\\'s', ok=true)]": said("", call("f", '{"a": "it\'s", "ok": true}')),
    "[link](url) text": said("[link](url) text"),
    "[f(1)]": said("[f(1)]"),
    "[f(a=b)] x": said("[f(a=b)] x"),
    "[f(a=__import__('os'))]": said("[f(a=__import__('os'))]"),
    "[f(a=1e999)]": said("[f(a=1e999)]"),
    "[f(a=1": said("[f(a=1"),
    "[1] says": said("[1] says"),
}
SAMPLES = [
    (dialect, text, expected)
    for dialect, samples in (
        ("hermes", HERMES),
        ("generic", HERMES),
        ("llama3_json", LLAMA),
        ("mistral", MISTRAL),
        ("pythonic", PYTHONIC),
    )
    for text, expected in samples.items()
]


@pytest.mark.parametrize(("dialect", "text", "expected"), SAMPLES)
def test_every_cut_gives_the_same_ap_4(dialect, text, expected):
    """AP-4: all at once, every single cut, a character at a time; arguments never twice, never cut off."""
    how = plan(dialect)
    assert split(how, [text]) == expected
    assert split(how, text) == expected
    for i in range(len(text)):
        assert split(how, [text[:i], text[i:]]) == expected, i


REASONING = {
    "<think>\nwhat</think>\n\nok": said("ok", reasoning="what"),
    "\n<think>a <b> </think>": said(reasoning="a <b>"),
    "<think>unfinished </thi": said(reasoning="unfinished </thi"),
    "<think></think>hi": said("hi"),
    "no <think>tag</think>": said("no <think>tag</think>"),
    '<think>x <tool_call>{"name":"f"}</think><tool_call>{"name":"g"}': said(
        "", call("g"), reasoning='x <tool_call>{"name":"f"}'
    ),
    "<thi": said("<thi"),
    " \n": said(" \n"),
}


@pytest.mark.parametrize(("text", "expected"), REASONING.items())
def test_reasoning_is_taken_apart_in_every_cut(text, expected):
    how = plan("hermes", reasoning=THINK)
    for pieces in ([text], text, *([text[:i], text[i:]] for i in range(len(text)))):
        assert split(how, pieces) == expected


def test_reasoning_that_the_prompt_opened():
    how = plan(None, reasoning=THINK, in_reasoning=True)
    for text in ("why\n</think>\n\nso", "<think>\nwhy</think>so"):
        assert split(how, text) == split(how, [text]) == said("so", reasoning="why")
    assert split(plan(None, reasoning=THINK, in_reasoning=True, shows_reasoning=False), "a</think>b") == said(
        "b"
    )


def test_a_single_call_ends_the_answer():
    text = 'a <tool_call>{"name":"f"}</tool_call><tool_call>{"name":"g"}</tool_call> b'
    how = plan("hermes", single=True)
    for pieces in ([text], text):
        assert split(how, pieces) == said("a", call("f"))
    splitter = PartSplitter(how)
    splitter.push('<tool_call>{"name":"f"}')
    assert splitter.is_over
    assert splitter.push("more") == splitter.flush() == []


@pytest.mark.parametrize(
    ("dialect", "text", "left"),
    [
        ("hermes", 'a <tool_call>{"name": "f", "argum', "a"),
        ("hermes", "a\n<tool_call>", "a"),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>\n<tool_call>\n{"na', ""),
        ("hermes", '{"name": "', '{"name": "'),  # without mark and name it may be any JSON
        ("hermes", '{"name": "Bob", "arguments": {"a', '{"name": "Bob", "arguments": {"a'),
        ("hermes", "a <tool_ca", "a <tool_ca"),
        ("mistral", '[TOOL_CALLS][{"name": "f"}, {"na', ""),
        ("mistral", "[TOOL_CALLS]f[AR", ""),
        ("llama3_json", '{"name": "f"}; {"na', ""),
        ("pythonic", "<|python_start|>[f(a=", ""),
        ("pythonic", "[other(a=", "[other(a="),
        ("pythonic", "[f(1), f(a=", "[f(1), f(a="),  # what is whole of it is no call: it is text in brackets
        ("generic", 'b <tool_call>{"name": "g", "arguments": {"x": ', "b"),
        ("hermes", '<tool_call>{"name": "f"}</tool_call> so x <', "so x <"),  # text was said: so is this
        ("hermes", '<tool_call>{"name": "f"}</tool_call>so <tool_', "so <tool_"),
        ("hermes", '<tool_call>{"name": "f"}</tool_call> \n<tool_', ""),  # none was
        ("hermes", '<tool_call>{"name": "f"}</tool_call> so <tool_call>{"na', "so"),
        ("mistral", '[TOOL_CALLS][{"name": "f"}] if a[TOOL', "if a[TOOL"),
    ],
)
def test_a_call_that_is_cut_is_no_text(dialect, text, left):
    """The mark would be shown to users, and sent back with the next turn. What the model itself breaks off
    stays text, so that nothing it said is lost."""
    for pieces in ([text], text):
        splitter, cut = PartSplitter(plan(dialect)), Gathering()
        for piece in pieces:
            cut.add(splitter.push(piece))
        cut.add(splitter.flush(is_cut=True))
        assert cut.message().content == left
        assert [c.name for c in cut.message().calls] == ["f"] * text.count('{"name": "f"}')
        assert len(split(plan(dialect), pieces).content) >= len(left)
    for dialect, text in (("hermes", '<tool_call>{"name": "f", "argum'), ("pythonic", "[f(a=1), g(")):
        assert split(plan(dialect), [text]) == said(text)  # the model itself broke it off


ONE, TWO = call("f", '{"a": 1}'), call("g")
CUTS = {
    "hermes": (
        'ok <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> '
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        "ok",
        "<tool_call>",
    ),
    "hermes without marks": (
        '{"name": "f", "arguments": {"a": 1}} {"name": "g", "arguments": {}}',
        "",
        '"f"',
    ),
    "llama3_json": (
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        '"f"',
    ),
    "mistral": (
        'ok [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "ok",
        "[TOOL_CALLS]",
    ),
    "mistral_named": ('ok [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "ok", "[TOOL_CALLS]"),
    "pythonic": ("[f(a=1), g()]", "", "[f("),
    "pythonic with a mark": ("ok <|python_start|>[f(a=1), g()]", "ok", "<|python_start|>"),
}
"""By dialect: two calls, the text before them, and what tells that they are calls."""
WHOLE = {"pythonic": ("1)", "g()"), "mistral_named": ("1}", "]{}")}


@pytest.mark.parametrize("how", CUTS)
def test_every_cut_leaves_the_calls_that_are_whole_and_no_piece_of_one_ap_5(how):
    """AP-5, in every dialect alike: from where it shows that a call is meant, no cut makes it text; what may
    still be text until there is text."""
    dialect = how.partition(" ")[0]
    text, before, sign = CUTS[how]
    meant = text.index(sign) + len(sign)
    first, second = WHOLE.get(dialect, ("1}}", "{}}"))
    ends = text.index(first) + len(first), text.index(second, meant) + len(second)
    for size in range(len(text) + 1):
        for pieces in ([text[:size]], text[:size]):
            splitter, cut = PartSplitter(plan(dialect)), Gathering()
            for piece in pieces:
                cut.add(splitter.push(piece))
            cut.add(splitter.flush(is_cut=True))
            message = cut.message()
            assert [(c.name, c.arguments) for c in message.calls] == [
                (c.name, c.arguments) for c, end in zip((ONE, TWO), ends, strict=True) if size >= end
            ], text[:size]
            assert message.content == (text[:size] if size < meant else before), text[:size]


def test_calls_that_are_certain_come_as_they_are_written():
    how = plan("hermes", certain=True)
    splitter = PartSplitter(how)
    assert [type(p).__name__ for p in splitter.push('<tool_call>{"name": "f", "arguments": {"a')] == [
        "CallBegin",
        "CallArguments",
    ]
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert split(how, text) == split(how, [text]) == said("", call("f", '{"a": 1}'))


ATOMS = st.sampled_from(
    (
        *"<{[\"'}]\\:, \n;1af",
        *("<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": {', "}}", "[TOOL_CALLS]", "[ARGS]"),
        *("f(a=", ")]", "<think>", "</think>", '"g"', "<|python_tag|>", "é", "true", "-1.5e3", "\\u00e9"),
    )
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ATOMS, max_size=30), st.lists(st.integers(0, 80), max_size=8), st.booleans(), st.data())
def test_any_cutting_of_any_text_gives_the_same(atoms, cuts, thinks, data):
    dialect = data.draw(st.sampled_from(DIALECTS.names()))
    text = "".join(atoms)
    how = plan(dialect, reasoning=THINK if thinks else None, certain=data.draw(st.booleans()))
    whole = split(how, [text])
    places = sorted({min(c, len(text)) for c in cuts})
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(how, pieces) == whole
    assert split(how, text) == whole
    for made in whole.calls:
        if made.is_whole:
            assert isinstance(json.loads(made.arguments), dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@settings(max_examples=200, deadline=None)
@given(OBJECTS, st.booleans(), st.text(max_size=20), st.sampled_from((None, 2)))
def test_arguments_come_back_as_they_were_written(arguments, ascii_only, tail, indent):
    written = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only, indent=indent)
    text = f"<tool_call>\n{written}\n</tool_call>"
    message = split(plan("hermes"), text)
    assert [json.loads(c.arguments) for c in message.calls] == [arguments]
    value = JsonValue()
    assert value.push(written + tail, 0) == len(written)
    assert value.status is Status.DONE


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]",:\\ \n0123-+.eEtrufalsn', max_size=24))
def test_json_is_what_json_loads_takes(text):
    value = JsonValue()
    end = value.push(text + " ", 0)
    try:
        json.loads(text, strict=False)
        is_json = "NaN" not in text
    except ValueError:
        is_json = False
    if is_json:
        assert value.status is Status.DONE
    elif value.status is Status.DONE:
        json.loads("".join(value.pieces))
        assert text[end:].strip(" \t\n\r"), "only what follows the value is wrong"


UNITS = ("<tool", "<tool_call>", "<tool_call>{", '<tool_call>{"name":"f","arguments":')
UNITS += ('{"name":"', "[f(", "[", "<think>", " ", "[TOOL_CALLS]f{")


@pytest.mark.parametrize("dialect", DIALECTS.names())
@pytest.mark.parametrize("unit", UNITS)
def test_hostile_text_takes_linear_time(dialect, unit):
    """CVE-2025-48887: no backtracking; 48 kB of the beginning of a call. In seconds of the cores, and tried
    again, as others use them: what grows with the square takes 64 times as long each time."""
    how = plan(dialect, reasoning=THINK)

    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        pieces = [text[i : i + 4] for i in range(0, size, 4)]
        best = 9.0
        for _ in range(2):
            begin = time.process_time()
            split(how, pieces)
            best = min(best, time.process_time() - begin)
        return best

    assert any(seconds(48_000) < 16 * seconds(6_000) + 0.02 for _ in range(4))
