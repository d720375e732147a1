"""What of a JSON schema is refused before the library sees it.

Automata that grow with a number in the schema and not with its text escape the library's own limits: such
numbers are bounded here.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from headrace.base.errors import RequestError
from headrace.base.grammar import PARAM

MAX_MULTIPLE = 10_000
"""Largest numerator of `multipleOf` without its decimal point: the automaton has that many states."""
MAX_PATTERNS = 32
"""Most `patternProperties` of one object: they are compared with each other, pair by pair."""
MAX_NODES = 20_000
"""Most objects, lists and values of a schema."""


def check_schema(text: str) -> None:
    """Look at every value of a schema.

    Raises:
        RequestError: a number or count is above its limit; the message says where.
    """
    todo: list[tuple[str, Any]] = [("#", json.loads(text))]
    seen = 0
    while todo:
        path, value = todo.pop()
        seen += 1
        if seen > MAX_NODES:
            raise RequestError(
                f"the JSON schema has more than {MAX_NODES} values; make it smaller", param=PARAM
            )
        if isinstance(value, Mapping):
            rules = cast("Mapping[str, Any]", value)
            _check_rules(path, rules)
            todo.extend((f"{path}/{name}", item) for name, item in rules.items())
        elif isinstance(value, list):
            todo.extend((f"{path}/{i}", item) for i, item in enumerate(cast("Sequence[Any]", value)))


def _check_rules(path: str, rules: Mapping[str, Any]) -> None:
    patterns = rules.get("patternProperties")
    if isinstance(patterns, Mapping) and len(cast("Mapping[str, Any]", patterns)) > MAX_PATTERNS:
        raise RequestError(
            f"{path[:200]} has {len(cast('Mapping[str, Any]', patterns))} patternProperties, limit "
            f"{MAX_PATTERNS}; make one pattern of several",
            param=PARAM,
        )
    step = rules.get("multipleOf")
    if isinstance(step, (int, float)) and not isinstance(step, bool) and _numerator(step) > MAX_MULTIPLE:
        raise RequestError(
            f"{path[:200]}: multipleOf {step} is too fine or too large, limit {MAX_MULTIPLE} (without its "
            "decimal point); leave it out and check the number afterwards",
            param=PARAM,
        )


def _numerator(step: float) -> int:
    """The digits of a number without its point and the zeros around them."""
    try:
        digits = Decimal(str(step)).normalize().as_tuple()
    except InvalidOperation:
        return MAX_MULTIPLE + 1
    if not isinstance(digits.exponent, int) or len(digits.digits) > 12 or abs(digits.exponent) > 12:
        return MAX_MULTIPLE + 1
    number = int("".join(map(str, digits.digits)))
    return number * 10 ** max(digits.exponent, 0)
