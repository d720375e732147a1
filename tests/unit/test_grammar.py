"""Grammars: what is refused from the text alone, what the compiler refuses, what is kept."""

import json
import resource
from pathlib import Path

import pytest

from headrace.base import grammar as base
from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar, GrammarKind, schema_text
from headrace.base.request import SamplingParams
from headrace.host.grammar import cache as cache_module
from headrace.host.grammar.cache import MatcherCache
from headrace.host.grammar.compiler import Compiler, GrammarVocabulary
from headrace.host.grammar.schema import check_schema
from tests.kit.vocabs import byte_tokenizer


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    tokenizer = byte_tokenizer()
    return Compiler(GrammarVocabulary(tokenizer, tokenizer.vocab_size, tokenizer.end_ids))


def follow(compiler: Compiler, grammar: Grammar, text: str) -> tuple[str | None, bool]:
    """The error after a text of single bytes, and whether it is a whole answer."""
    matcher = compiler.compile(grammar)
    matcher.advance(text.encode())
    return matcher.error, matcher.is_complete


def accepts(compiler: Compiler, grammar: Grammar, text: str) -> bool:
    error, is_complete = follow(compiler, grammar, text)
    return error is None and is_complete


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Grammar.regex(""), "empty"),
        (lambda: Grammar.regex("a" * (base.MAX_GRAMMAR_BYTES + 1)), "262145 bytes"),
        (lambda: Grammar.regex("(" * 60_000), "limit 64"),
        (lambda: Grammar.lark("start: " + "[" * 65), "limit 64"),
        (lambda: Grammar.json('{"properties":{"a":' * 60_000), "limit"),
        (lambda: Grammar.json("[" * 10_000), "nested deeper"),
        (lambda: Grammar.json("{"), "no JSON"),
        (lambda: Grammar.json("5"), "is an object"),
        (lambda: Grammar.json({"enum": [object()]}), "no JSON"),
        (lambda: Grammar.json(False), "no value"),
        (lambda: Grammar.json({}, whitespace=" " * 300), "300 characters"),
        (lambda: Grammar.choice([]), "0 texts"),
        (lambda: Grammar.choice(["a", ""]), "not empty"),
        (lambda: Grammar.choice(["a", 5]), "got 5"),  # type: ignore[list-item]
        (lambda: SamplingParams(structured="{}"), "must be a Grammar"),  # type: ignore[arg-type]
        (lambda: SamplingParams(structured=Grammar.regex("a"), ignore_eos=True), "exclude"),
    ],
)
def test_texts_are_measured_before_they_are_compiled(make, said):
    with pytest.raises(RequestError, match=said):
        make()


def test_a_nested_object_that_is_no_text_is_measured_too():
    schema: dict = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(RequestError, match="nested deeper"):
        Grammar.json(schema)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"items": {"multipleOf": 1234567}}, "#/items: multipleOf 1234567"),
        ({"multipleOf": 1e-30}, "multipleOf"),
        ({"properties": {"a": {"multipleOf": 1e300}}}, "#/properties/a"),
        ({"patternProperties": {f"^a{i}$": {} for i in range(33)}}, "33 patternProperties"),
        ({"enum": list(range(20_001))}, "more than 20000 values"),
    ],
)
def test_numbers_that_blow_up_automata_are_bounded(schema, said):
    with pytest.raises(RequestError, match=said):
        check_schema(json.dumps(schema))
    check_schema(json.dumps({"multipleOf": 0.01, "items": {"multipleOf": 500}}))


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar.regex("("), "unclosed group"),
        (Grammar.regex("*a"), "repetition operator missing"),
        (Grammar.regex("(?=a)a"), "look-around"),
        (Grammar.lark("start: nothing"), 'unknown name: "nothing"'),
        (Grammar.lark('root ::= "a'), "GBNF"),
        (Grammar.lark("root ::= " + " " * 20_000 + '"a"'), "limit 16384"),
        (Grammar.json({"type": 5}), "type must be a string"),
        (Grammar.json({"$ref": "#/nowhere"}), "cannot be used"),
        (Grammar.json({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json({"$ref": "#"}), "grammar"),
        (Grammar.json({"type": "string", "pattern": "("}), "cannot be used"),
    ],
)
def test_what_the_compiler_refuses_is_said(compiler, grammar, said):
    with pytest.raises(RequestError, match=said) as caught:
        compiler.compile(grammar)
    assert caught.value.param == "structured_outputs"
    assert len(caught.value.message) < 700


def test_recursion_that_ends_is_fine(compiler):
    tree = Grammar.json({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False})
    assert accepts(compiler, tree, '{"a": {"a": {}}}')


def test_every_kind_matches_whole_answers(compiler):
    assert accepts(compiler, Grammar.regex("ab*"), "abbb")
    assert not accepts(compiler, Grammar.regex("ab*"), "abc")
    assert accepts(compiler, Grammar.choice(['say "hi"', "línea\n"]), 'say "hi"')
    assert accepts(compiler, Grammar.choice(['say "hi"', "línea\n"]), "línea\n")
    assert not accepts(compiler, Grammar.choice(["yes", "no"]), "ye")
    assert accepts(compiler, Grammar.lark('start: "(" start ")" | "x"'), "((x))")
    assert accepts(compiler, Grammar.lark('root ::= "a" b\nb ::= [0-9]+'), "a42")
    assert accepts(compiler, Grammar.json_object(), '{"a": [1, {"b": null}]}')
    assert not accepts(compiler, Grammar.json_object(), "[]")
    assert accepts(compiler, Grammar.json(True), "[]")


def test_white_space_is_bounded_and_can_be_chosen(compiler):
    """AP-6: white space cannot go on."""
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}
    for text in ('{"a":null}', '{"a": null}', '{\n        "a": null\n}', '{\r\n\t"a": null }'):
        assert accepts(compiler, Grammar.json(schema), text)
    for text in ('{  "a":null}', "{\n\n", "{\n" + " " * 33):
        assert follow(compiler, Grammar.json(schema), text)[0] is not None
    tight = Grammar.json(schema, whitespace="")
    assert accepts(compiler, tight, '{"a":null}')
    assert not accepts(compiler, tight, '{"a": null}')
    assert accepts(compiler, Grammar.json(schema, whitespace=" {2}"), '{  "a":  null}')


def test_a_schema_cannot_set_what_the_compiler_reads_from_it(compiler):
    lenient = Grammar.json({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True})
    with pytest.raises(RequestError, match="uniqueItems"):
        compiler.compile(lenient)


def test_objects_can_be_closed():
    either = [{"properties": {"b": {}}}, {"type": "object"}]
    open_one = {"properties": {}, "additionalProperties": True}
    schema = {
        "properties": {"a": {"anyOf": either}, "c": open_one},
        "$defs": {"properties": {"type": "string"}},
    }
    made = json.loads(schema_text(schema, additional_properties=False))
    assert made["additionalProperties"] is False
    assert made["properties"]["a"]["anyOf"] == [either[0] | {"additionalProperties": False}, either[1]]
    assert made["properties"]["c"]["additionalProperties"] is True
    assert made["$defs"]["properties"] == {"type": "string"}
    assert "additionalProperties" not in json.loads(schema_text(schema))


def test_known_grammars_are_ready_and_known_errors_come_at_once(compiler):
    cache = MatcherCache(compiler)
    good, bad = Grammar.regex("ab"), Grammar.regex("(")
    first = cache.take(good)
    assert cache.hits == 0
    cache.restock(good)
    second = cache.take(good)
    assert cache.hits == 1
    assert first is not second
    first.advance(b"ab")
    assert second.error is None
    assert not second.is_complete
    for hits in (1, 2, 3):
        with pytest.raises(RequestError, match="unclosed"):
            cache.take(bad)
        assert cache.hits == hits
    cache.restock(bad)
    cache.restock(Grammar.regex("never seen"))
    assert cache.num_ready == 0


def test_many_different_grammars_take_bounded_memory(compiler, monkeypatch):
    """GHSA-mgrm-fgjv-mhv8: 10,000 schemas fill nothing."""
    monkeypatch.setattr(cache_module, "MAX_BYTES", 4_000)
    cache = MatcherCache(compiler)
    for i in range(10_000):
        grammar = Grammar(kind=GrammarKind.REGEX, source=f"({i}" if i % 50 else f"[a-c]{i}")
        try:
            cache.take(grammar)
        except RequestError:
            continue
        cache.restock(grammar)
    assert cache.num_entries <= cache_module.MAX_ENTRIES
    assert 3_900 < cache.num_bytes <= 4_000
    assert 0 < cache.num_ready <= cache_module.MAX_READY


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_many_different_schemas_take_bounded_memory(compiler):
    """GHSA-mgrm-fgjv-mhv8: 10,000 good schemas leave as much behind as the first thousands."""
    cache = MatcherCache(compiler)
    sizes = []
    for i in range(10_000):
        schema = {"type": "object", "properties": {f"p{i}": {"const": i}}, "additionalProperties": False}
        grammar = Grammar.json(schema, whitespace="")
        cache.take(grammar)
        if i % 100 == 0:
            cache.restock(grammar)
        if i % 2000 == 1999:
            sizes.append((cache.num_entries, cache.num_ready, resident_bytes()))
    assert {entries for entries, _, _ in sizes} == {cache_module.MAX_ENTRIES}
    assert {ready <= cache_module.MAX_READY for _, ready, _ in sizes} == {True}
    assert sizes[-1][2] - sizes[1][2] < 16 << 20
