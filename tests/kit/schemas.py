"""Random JSON schemas within what can be enforced, and answers under them.

`python -m tests.kit.schemas 500 [SEED]` draws that many with SmolLM2 at temperature 1 and counts the valid.
"""

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import jsonschema

from headrace.base.errors import RequestError
from headrace.base.grammar import Grammar
from headrace.base.request import SamplingParams
from headrace.engine.llm import LLM
from headrace.engine.outputs import GenerationResult

NAMES = ("name", "age", "id", "tags", "kind", "x y", "ünïcode", 'quo"te', "a/b", "")
FORMATS = ("date", "uuid", "ipv4", "ipv6")
"""Those whose texts have an end: fractions of a second and hosts have none."""
CHECKED = jsonschema.FormatChecker(("uuid", "ipv4", "ipv6"))
"""Those on which Python's checker and the standard agree: a year 0000 is one of RFC 3339's."""
PATTERNS = ("^[a-z]{2,6}$", "^(red|green)$", "^[A-Z]{3}-[0-9]{2,4}$", "[0-9]+", "^a.*z$", r"^\d{4}-\d\d$")
UNSUPPORTED: tuple[dict[str, Any], ...] = (
    {"type": "array", "uniqueItems": True},
    {"not": {"type": "string"}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "array", "contains": {"type": "integer"}},
    {"if": {"type": "string"}, "then": {"minLength": 1}},
    {"type": "string", "format": "regex"},
)
"""Keywords that must be refused, not ignored."""


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema whose answers have bounded length, but for numbers and white space."""
    schema = _node(rng, depth)
    if rng.random() < 0.25:
        names = ["A", "B"]
        schema = {
            "type": "object",
            "properties": {"first": {"$ref": "#/$defs/A"}, "rest": {"$ref": "#/$defs/B"}, "own": schema},
            "required": rng.sample(["first", "rest", "own"], rng.randint(1, 3)),
            "additionalProperties": False,
            "$defs": {name: _node(rng, 1) for name in names},
        }
    return schema


def _node(rng: random.Random, depth: int) -> dict[str, Any]:
    leaves = [_string, _integer, _number, _fixed, _flag]
    inner = [_object, _object, _array, _any, _tuple, _types, _all]
    return rng.choice(leaves if depth <= 0 or rng.random() < 0.25 else inner)(rng, depth - 1)


def _string(rng: random.Random, _: int) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.3:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind < 0.6:
        return {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 12}
    low = rng.randint(0, 4)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 10)}


def _integer(rng: random.Random, _: int) -> dict[str, Any]:
    low = rng.randint(-1000, 1000)
    made: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": low + rng.randint(20, 10**6)}
    if rng.random() < 0.3:
        made = {"type": "integer", "minimum": 0, "multipleOf": rng.choice([2, 5, 7, 60]), "maximum": 100_000}
    return made


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    low = rng.randint(-10, 10)
    return {
        "type": "number",
        rng.choice(["minimum", "exclusiveMinimum"]): low,
        rng.choice(["maximum", "exclusiveMaximum"]): low + rng.choice([1, 100, 12345.5]),
        "multipleOf": rng.choice([0.5, 0.25, 0.125]),  # else its digits have no end
    }


def _fixed(rng: random.Random, _: int) -> dict[str, Any]:
    values: list[Any] = ["red", "", 'a "b"', 5, -1.5, None, True, [1, "x"], {"k": [0]}, "line\nbreak", "日本"]
    return (
        {"const": rng.choice(values)}
        if rng.random() < 0.3
        else {"enum": rng.sample(values, rng.randint(1, 5))}
    )


def _flag(rng: random.Random, _: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null"])}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 4))
    made: dict[str, Any] = {"type": "object", "properties": {name: _node(rng, depth) for name in names}}
    made["required"] = rng.sample(names, rng.randint(0, len(names)))
    made["additionalProperties"] = False
    if rng.random() < 0.15:
        more = {"^more[0-9]{1,3}$": _flag(rng, 0)}  # names without a pattern have no end
        made |= {"required": names, "patternProperties": more, "maxProperties": len(names) + 2}
    return made


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    return {"type": "array", "items": _node(rng, depth), "minItems": low, "maxItems": low + rng.randint(0, 2)}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    places = [_node(rng, depth) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": places, "items": False, "minItems": rng.randint(0, len(places))}


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_node(rng, depth) for _ in range(rng.randint(2, 3))]}


def _types(rng: random.Random, _: int) -> dict[str, Any]:
    types = rng.sample(["integer", "boolean", "null", "string"], 2)
    return {"type": types, "maxLength": 8, "minimum": -99, "maximum": 10**6}


def _all(rng: random.Random, depth: int) -> dict[str, Any]:
    parts = [_object(rng, depth), _object(rng, depth)]
    for part, name in zip(parts, ("left", "right"), strict=True):
        part.pop("additionalProperties")
        part.pop("maxProperties", None)
        part["properties"] = {f"{name} {key}": value for key, value in part["properties"].items()}
        part["required"] = list(part["properties"])
    return {"type": "object", "allOf": parts, "maxProperties": sum(len(part["properties"]) for part in parts)}


def verdict(schema: dict[str, Any], answer: GenerationResult) -> str:
    """`valid`, `length` (cut by max_tokens), or what is wrong."""
    if answer.finish_reason != "stop":
        return answer.finish_reason
    try:
        value = json.loads(answer.text)
    except ValueError as error:
        return f"no JSON: {error}"
    checker = jsonschema.Draft202012Validator(schema, format_checker=CHECKED)
    wrong = next(iter(checker.iter_errors(value)), None)
    return "valid" if wrong is None else f"invalid: {wrong.message}"


def answers(llm: LLM, schemas: list[dict[str, Any]], seed: int = 0) -> list[GenerationResult | None]:
    """Answers at temperature 1, all schemas together; None: the schema was refused."""
    usable: dict[int, SamplingParams] = {}
    for i, schema in enumerate(schemas):
        params = SamplingParams(temperature=1.0, max_tokens=1, seed=seed + i, structured=Grammar.json(schema))
        try:
            llm.generate("JSON: ", params, progress=False)
        except RequestError:
            continue
        usable[i] = params
    given = [replace(params, max_tokens=1500) for params in usable.values()]
    made = dict(zip(usable, llm.generate(["JSON: "] * len(given), given, progress=False), strict=True))
    return [made.get(i) for i in range(len(schemas))]


def main(count: int, seed: int) -> int:
    rng = random.Random(seed)
    schemas = [random_schema(rng) for _ in range(count)]
    found: Counter[str] = Counter()
    with LLM("smollm2:135m", max_model_len=2048) as llm:
        for first in range(0, count, 50):
            part = schemas[first : first + 50]
            for schema, answer in zip(part, answers(llm, part, seed + first), strict=True):
                told = "refused" if answer is None else verdict(schema, answer)
                found[told.split(":")[0]] += 1
                if told not in ("valid", "refused"):
                    print(told[:200], json.dumps(schema)[:400], answer and answer.text[:200])
            print(first + len(part), dict(found), flush=True)
    return int(set(found) - {"valid", "refused"} != set())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
