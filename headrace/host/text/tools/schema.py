"""Whether a value is a JSON schema: the shape of the keywords that matter, bounded in size and depth."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from headrace.base.errors import RequestError

MAX_DEPTH = 16
MAX_NODES = 10_000
TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})

_SCHEMAS = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_TEXTS = ("pattern", "$ref", "format", "title", "description")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def check_schema(schema: Any, where: str, param: str) -> None:
    """Refuse what is no schema.

    Args:
        schema: the value.
        where: its place in the request, for messages.
        param: the request's field.

    Raises:
        RequestError: a keyword has a value of a wrong kind, or the schema is too large or nests too deep.
    """
    stack: list[tuple[Any, str, int]] = [(schema, where, 0)]
    nodes = 0
    while stack:
        value, place, depth = stack.pop()
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise RequestError(
                f"{where} is too large: limits are {MAX_DEPTH} levels and {MAX_NODES} schemas", param=param
            )
        if isinstance(value, bool) and depth:
            continue
        if not isinstance(value, Mapping):
            raise RequestError(f"{place[:200]} must be a schema, an object, got {value!r:.60}", param=param)
        fields = cast("Mapping[str, Any]", value)
        fault = _fault(fields)
        if fault:
            raise RequestError(f"{place[:200]}.{fault}", param=param)
        stack += [(inner, f"{place}.{name}", depth + 1) for name, inner in _inner(fields)]


def _inner(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key in _SCHEMAS:
        value = fields.get(key)
        if isinstance(value, list):  # `items` of old drafts
            found += [(f"{key}[{i}]", item) for i, item in enumerate(cast("list[Any]", value))]
        elif key in fields:
            found.append((key, value))
    for key in _LISTS:
        found += [(f"{key}[{i}]", item) for i, item in enumerate(fields.get(key, ()))]
    for key in _MAPS:
        found += [(f"{key}.{name}", item) for name, item in fields.get(key, {}).items()]
    return found


def _fault(fields: Mapping[str, Any]) -> str:
    """What is wrong with a keyword of this schema; empty: nothing."""
    for key, value in fields.items():
        for keys, is_right, what in _KINDS:
            if key in keys and not is_right(value):
                return f"{key} must be {what}, got {value!r:.60}"
    return ""


def _is_type(value: Any) -> bool:
    names = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[Any]", value))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(cast("list[Any]", value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_KINDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("type",), _is_type, f"one of {', '.join(sorted(TYPES))}, or a list of them"),
    (_MAPS, lambda v: isinstance(v, Mapping), "an object"),
    ((*_LISTS, "enum"), _is_list, "a list with entries"),
    (("required",), _is_texts, "a list of names"),
    (_TEXTS, lambda v: isinstance(v, str), "a text"),
    (_NUMBERS, _is_number, "a number"),
    (_COUNTS, _is_count, "a count"),
)
