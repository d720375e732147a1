"""Mutated chat templates and grammars: `python -m tests.fuzz.texts --count 20000`.

A template runs in its sandbox; a schema, regular expression or Lark grammar goes through the compiler and
some steps of its matcher. Each must work or be refused with a `RequestError`, within a bounded time.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar
from headrace.base.ids import SlotId
from headrace.host.grammar.compiler import Compiler, GrammarVocabulary
from headrace.host.grammar.masks import MaskMaker
from headrace.host.text.chat import CHATML, ChatTemplate
from tests.fuzz.mutate import TEXTS, damage, mutate_json, odd_value
from tests.kit.schemas import random_schema
from tests.kit.vocabs import byte_tokenizer

MAX_TEMPLATE_S = 1.5
"""The sandbox stops at 0.8 s; parsing and the last operation come on top."""
MAX_GRAMMAR_S = 10.0
"""`engine/grammars/compiling` gives up on a grammar after as long, off the loop."""

TEMPLATES: tuple[str, ...] = (
    CHATML,
    "{%- if messages[0]['role'] == 'system' %}{{ messages[0].content | trim }}{% endif %}"
    "{% for m in messages[1:] %}{{ '[' ~ m.role ~ ']' + m['content'] | string }}"
    "{% if not loop.last %}, {% endif %}"
    "{% endfor %}",
    "{% macro show(x, depth=0) %}{% for k, v in x.items() %}{{ k }}: {{ v | tojson(indent=2) }}{% endfor %}"
    "{% endmacro %}{% for t in tools or [] %}{{ show(t.function) }}{% endfor %}{{ messages | length }}",
    "{% set ns = namespace(found=false, i=0) %}{% for m in messages | reverse %}{% set ns.i = ns.i + 1 %}"
    "{% if m.content is string and m.content.startswith('<t>') %}{% set ns.found = true %}{% endif %}"
    "{% endfor %}"
    "{{ ns.i * 3 }}{{ ns.found }}{{ '%s-%05d' | format('a', ns.i) }}{{ strftime_now('%d %b %Y') }}",
    "{% for m in messages %}{% if m.role not in ['user', 'system'] %}{{ raise_exception('bad') }}{% endif %}"
    "{% for part in m.content %}{{ part['text'] if part is mapping else part }}{% endfor %}{% break %}"
    "{% endfor %}{% filter upper %}{{ messages[-1].content.split('</think>')[-1].lstrip('\\n') }}"
    "{{ messages[0].content | replace('a', 'bb') }}{% endfilter %}",
)
PIECES: tuple[str, ...] = (
    *(
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}",
        "{{",
    ),
    *(
        "{{ 'a' * 999999999 }}",
        "{{ [0] * 99999999 }}",
        "{{ 10 ** 10 ** 9 }}",
        "{{ ''.__class__.__mro__ }}",
        "}}",
    ),
    *(
        "{{ messages.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{% include 'x' %}",
        "%}",
    ),
    *(
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__ }}",
        "{% import 'os' as o %}",
    ),
    *(
        "{{ 'a' | attr('__class__') }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x' | center(999999999) }}",
        "{% set x = x ~ x %}",
    ),
    *(
        "{{ messages | map('string') | join('a' * 10000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{# ",
    ),
    *(
        "{{ ('a' * 999) | replace('a', 'b' * 9999) }}",
        "{{ dict(a=1) | dictsort }}",
        "{% set ns.x = ns %}",
        "{% raw %}",
    ),
    *(
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '%(a)s' % {'a': 1} }}",
        "{{ range(10) | batch(999999999) | list }}",
        "{%- else -%}",
    ),
    *(
        "{{ (" + "(" * 300 + "1" + ")" * 300 + ") }}",
        "{{ " + "not " * 3000 + "1 }}",
        "{{ a" + ".a" * 3000 + " }}",
    ),
    *(
        "{% if 1 %}" * 200,
        "{{ [" + "[" * 150 + "]" * 150 + "] }}",
        "{% endfor %}",
        "{% endif %}",
        "{{ loop.cycle(1, 2) }}",
    ),
    *(
        "{{ messages | groupby('role') | list }}",
        "{{ messages | tojson | length }}",
        "{{ 1 / 0 }}",
        "{{ 5 // 0.0 }}",
    ),
)
REGEXES: tuple[str, ...] = (
    *(
        "a+(b|c){2,3}",
        "[A-Za-z_][a-z0-9]*",
        r"\d{4}-\d\d-\d\d",
        "(yes|no)( maybe)?",
        "(?i)abc",
        r"\p{L}+[^\s]",
        ".",
    ),
    *("(a*)*b", "(a|a)*", "x{0,200}y{0,200}", "(?P<n>a)|b", "^a$", r"[\x00-\x7f]{3}", "(((a?){9}){9}){9}"),
)
REGEX_PIECES: tuple[str, ...] = (
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{1000}",
        "{99999,}",
        "{0,65536}",
        "*",
        "+",
        "?",
        "|",
        "\\",
        "\\b",
        "\\1",
        "(?=a)",
    ),
    *(
        "(?<!b)",
        "(?R)",
        "(?>a)",
        "[^\\W\\D]",
        "\\p{Greek}",
        "\\u{110000}",
        "\\x{ffffffff}",
        "[z-a]",
        "(?-u:\\xff)",
        "&",
        "~",
    ),
    *(
        ".{4096}",
        "(.*){64}",
        "(a|b|c|d){500}",
        "[[:alpha:]&&[^a]]",
        "\ud800",
        "\x00",
        "é",
        "(?s-i:",
        "$^",
        "\\A\\z",
    ),
)
LARKS: tuple[str, ...] = (
    'start: "a" | "b" start',
    'start: item ("," item)*\nitem: NAME "=" NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]{1,5}/',
    '%ignore /[ \\t]+/\nstart: expr\nexpr: term (("+" | "-") term)*\nterm: NUM | "(" expr ")"\nNUM: /\\d+/',
    'start: a\na[max_tokens=3]: /.*/\n%json {"type": "object"}',
    'start: "x" %json {"type": "integer", "minimum": 3, "maximum": 99} "y"',
    'root ::= "a" [0-9]+ rest?\nrest ::= ("b" | root){2,3}',
)
LARK_PIECES: tuple[str, ...] = (
    *(
        "start: start",
        "start:",
        "a: a a",
        "%import common.WORD",
        "%declare X",
        "%ignore /a*/",
        "<[0-9]>",
        "<|im_end|>",
    ),
    *(
        '"' + "a" * 5000 + '"',
        "/(a*)*/",
        "~ 99999",
        "~1..65536",
        "[capture]",
        "[temperature=0.5]",
        "[stop=/a/]",
        "[lazy]",
    ),
    *(
        "%json {",
        '%json {"$ref": "#"}',
        "%regex {}",
        "::=",
        "->",
        "?start: x",
        "!x: y",
        "_x: ",
        "x{y}: y",
        "@grammar",
        "%%",
    ),
    *(
        "start: " + "a " * 3000,
        "\n" * 2000,
        "// " + "x" * 3000,
        "| ",
        "(" * 60,
        "&",
        "~",
        "\ud800",
        '"\\',
        '[suffix="x"]',
    ),
)
SCHEMA_KEYS: tuple[tuple[str, Any], ...] = (
    *(
        ("$ref", "#"),
        ("$ref", "#/$defs/a"),
        ("$ref", "http://127.0.0.1:1/x.json"),
        ("type", 5),
        ("type", ["string", 5]),
    ),
    *(
        ("pattern", "(" * 40),
        ("pattern", "(a*)*{1000}"),
        ("minLength", 10**9),
        ("maxLength", 1 << 40),
        ("minItems", 10**7),
    ),
    *(
        ("maxItems", -1),
        ("multipleOf", 1e-12),
        ("multipleOf", 0),
        ("enum", []),
        ("const", {"a": [None]}),
        ("allOf", []),
    ),
    *(
        ("minimum", 1e308),
        ("maximum", -1e308),
        ("minimum", 10**40),
        ("exclusiveMaximum", 5e-324),
        ("format", "date-time"),
    ),
    *(
        ("format", 5),
        ("required", ["a"] * 600),
        ("properties", {"a" * 5000: {}}),
        ("items", [{}] * 300),
        ("not", {}),
    ),
    *(
        ("x-guidance", {"whitespace_pattern": "(" * 9}),
        ("x-guidance", {"coerce_one_of": True}),
        ("$defs", {"a": {"$ref": "#/$defs/a"}}),
    ),
    *(
        ("oneOf", [{"type": "string"}] * 200),
        ("anyOf", [{"pattern": f"a{{{i},}}"} for i in range(60)]),
        ("$anchor", "a"),
    ),
    *(
        ("patternProperties", {".*": {}, "a+": {"type": "null"}}),
        ("additionalProperties", {"$ref": "#"}),
        ("if", {"const": 1}),
    ),
    *(
        ("dependentSchemas", {"a": {"$ref": "#"}}),
        ("propertyNames", {"maxLength": 3}),
        ("uniqueItems", True),
        ("contains", {}),
    ),
)

_MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi <t> </think> 10 %"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
]
_TOOLS: Any = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
]


def spliced(rng: Random, texts: tuple[str, ...], pieces: tuple[str, ...]) -> str:
    """A text with pieces put in, parts cut out or doubled, characters changed, or half of another."""
    text = rng.choice(texts)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 3, 10, 40)))
        kind = rng.randrange(6)
        if kind < 2:
            text = text[:at] + rng.choice(pieces) + text[end:]
        elif kind == 2:
            text = text[:at] + text[end:]
        elif kind == 3:
            text = text[:end] + text[at:end] * rng.choice((1, 2, 50)) + text[end:]
        elif kind == 4:
            text = damage(rng, text.encode(errors="surrogatepass")).decode(errors="replace")
        else:
            other = rng.choice(texts)
            text = text[:at] + other[rng.randrange(len(other) + 1) :]
    return text


def try_template(rng: Random) -> str:
    """Render a mutated template with plain or odd messages; returns what was tried."""
    source = spliced(rng, TEMPLATES, PIECES)
    messages = _MESSAGES if rng.random() < 0.6 else mutate_json(rng, _MESSAGES, rng.choice((1, 2, 4)))
    more: dict[str, Any] = {"tools": _TOOLS} if rng.random() < 0.5 else {}
    if rng.random() < 0.2:
        more["continue_final_message"] = True
    if rng.random() < 0.2:
        more["thinking"] = odd_value(rng)
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "<|im_end|>"})
    with_ids = rng.random() < 0.5

    def work() -> None:
        if with_ids:
            template.encode(_TOKENIZER, messages, **more)
        else:
            template.render(messages, **more)

    return _tried(work, source, MAX_TEMPLATE_S)


def try_grammar(rng: Random) -> str:
    """Compile a mutated grammar and follow it for some steps."""
    kind = rng.randrange(4)
    if kind == 0:
        source: Any = _mutated_schema(rng)
        make: Callable[[], Grammar] = lambda: Grammar.json(source, additional_properties=rng.random() < 0.5)  # noqa: E731
    elif kind == 1:
        source = spliced(rng, REGEXES, REGEX_PIECES)
        make = lambda: Grammar.regex(source)  # noqa: E731
    elif kind == 2:
        source = spliced(rng, LARKS, LARK_PIECES)
        make = lambda: Grammar.lark(source)  # noqa: E731
    else:
        source = [spliced(rng, TEXTS, REGEX_PIECES) for _ in range(rng.choice((1, 2, 30)))]
        make = lambda: Grammar.choice(source)  # noqa: E731
    steps = Random(rng.random())
    return _tried(lambda: _follow(make(), steps), source, MAX_GRAMMAR_S)


def _mutated_schema(rng: Random) -> Any:
    schema = random_schema(rng, depth=rng.choice((1, 2, 4)))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.choice([schema, *(v for v in schema.get("properties", {}).values() if isinstance(v, dict))])
        key, value = rng.choice(SCHEMA_KEYS)
        at[key] = deepcopy(value)
    if rng.random() < 0.4:
        schema = mutate_json(rng, schema, rng.choice((1, 2, 5)))
    return json.dumps(schema) if rng.random() < 0.3 else schema


def _follow(grammar: Grammar, rng: Random) -> None:
    """Masks and tokens for some steps, tokens drawn from the masks."""
    matcher = _COMPILER.compile(grammar)
    for _ in range(12):
        mask = _MASKS.start((SlotId(0),), [matcher]).take()
        allowed = [i for i, word in enumerate(mask.cast("B").cast("I")) if word]
        if not allowed:
            break
        word = rng.choice(allowed)
        bits = mask.cast("B").cast("I")[word]
        matcher.advance([32 * word + rng.choice([b for b in range(32) if bits >> b & 1])])
        if matcher.error or matcher.is_complete:
            break


def _tried(work: Callable[[], None], source: Any, limit_s: float) -> str:
    began_s = time.process_time()
    try:
        work()
        said = "good"
    except RequestError as error:
        said = (
            "refused" if len(error.message) < 2000 else f"FAULT a message of {len(error.message)} characters"
        )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        said = f"FAULT {error!r:.300}"
    took_s = time.process_time() - began_s
    if took_s > limit_s:
        said = f"FAULT {took_s:.1f} s of computing ({said})"
    return f"{said} {source!r:.600}" if said.startswith("FAULT") else said


_TOKENIZER = byte_tokenizer()
_VOCABULARY = GrammarVocabulary(_TOKENIZER, _TOKENIZER.vocab_size, _TOKENIZER.end_ids)
_COMPILER = Compiler(_VOCABULARY)
_MASKS = MaskMaker(_VOCABULARY.words, 1)


def run(count: int, seed: int, seconds: float = 1e9) -> tuple[Counter[str], list[str]]:
    """Try templates and grammars in turn until `count` or `seconds` is reached: outcomes, faults."""
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    end_s = time.monotonic() + seconds
    for i in range(count):
        if time.monotonic() > end_s:
            break
        rng = Random(f"{seed}-{i}")
        said = try_template(rng) if i % 2 else try_grammar(rng)
        outcomes[("template " if i % 2 else "grammar ") + said.split()[0]] += 1
        if said.startswith("FAULT"):
            faults.append(f"{seed}-{i}: {said}")
    return outcomes, faults


def main() -> int:
    """Run for a count or a time; 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    outcomes, faults = run(given.count, given.seed, given.seconds)
    print(f"{outcomes.total()} templates and grammars: {dict(outcomes)}")
    print(*faults[:20], sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
