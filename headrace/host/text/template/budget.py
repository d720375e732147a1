"""What a chat template may use up: work, output, time; and how large the things it makes may be."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Undefined
from jinja2.exceptions import TemplateError

from headrace.base import clock

MAX_WIDTH = 1000
"""Widest padding or indent that a template may ask for."""
WIDE = frozenset({"center", "ljust", "rjust", "zfill", "indent", "batch", "slice", "truncate", "round"})
"""Filters and methods with a width."""
_CHARS_PER_UNIT = 64
_MAX_BITS = 256
_LONG_FIELD = re.compile(r"\*|\d{4}")


class LimitError(TemplateError):
    """A template works or writes too much."""


@dataclass(slots=True)
class Budget:
    """What is left of a rendering's work (units of about a microsecond), output (characters) and time."""

    units: int
    chars: int
    deadline_s: float

    def spend(self, units: int) -> None:
        """Charge work.

        Raises:
            LimitError: work or time is used up.
        """
        self.units -= units
        if self.units < 0:
            raise LimitError("the template does too much work")
        if clock.now_s() > self.deadline_s:
            raise LimitError("the template takes too long")

    def hold(self, size: int) -> None:
        """Charge a string or list of `size` before it is made."""
        if size > self.chars:
            raise LimitError(f"the template builds a value of size {size}; {self.chars} are left")
        self.spend(1 + size // _CHARS_PER_UNIT)

    def weigh(self, value: object) -> None:
        """Charge a value with all that it holds, counted as often as it would be written.

        Raises:
            LimitError: it is too large.
            TemplateError: it is no plain value.
        """
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.hold(len(item))
                continue
            self.spend(1)
            if isinstance(item, Mapping):
                stack.extend(cast("Mapping[object, object]", item).keys())
                stack.extend(cast("Mapping[object, object]", item).values())
            elif isinstance(item, list | tuple):
                stack.extend(cast("list[object]", item))
            elif not isinstance(item, int | float | None | Undefined):
                raise TemplateError(f"a template cannot use a {type(item).__name__} as text")

    def weigh_nested(self, value: Any) -> None:
        """Charge the containers that a new container holds, each as often as it would be written."""
        stack = [value]
        while stack:
            item = stack.pop()
            self.spend(1)
            inner = cast("Iterable[Any]", item.values() if isinstance(item, Mapping) else item)
            stack.extend(cast("Any", v) for v in inner if isinstance(v, list | tuple | Mapping))

    def turns(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each charged when it is taken."""
        for item in items:
            self.spend(1)
            yield item


def check_growth(budget: Budget, name: str, text: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charges the result of a method or filter before it is computed; returns the arguments."""
    if name in WIDE:
        check_width(args)
    elif name == "replace" and len(args) > 1:
        old, new = str(args[0]), str(args[1])
        count = str(text).count(old) if old else size(text) + 1
        budget.hold(size(text) + count * len(new))
    elif name == "join" and isinstance(text, str) and args:
        items = list(budget.turns(args[0]))
        budget.weigh(items)
        budget.hold(len(text) * len(items))
        return (items, *args[1:])
    else:
        budget.hold(size(text))
    return args


def check_width(values: Iterable[Any]) -> None:
    """Refuses widths over `MAX_WIDTH`."""
    for value in values:
        if (isinstance(value, int | float) and abs(value) > MAX_WIDTH) or size(value) > MAX_WIDTH:
            raise LimitError(f"the template asks for a width of {value!s:.20}; the limit is {MAX_WIDTH}")


def check_format(text: str) -> None:
    """Refuses `%` formats with wide fields."""
    if _LONG_FIELD.search(text):
        raise LimitError("the template formats with a width of more than three digits")


def check_bits(operator: str, left: int, right: int) -> None:
    """Refuses whole numbers that would grow large."""
    bits = left.bit_length()
    size = bits * abs(right) if operator == "**" else bits + right.bit_length()
    if size > _MAX_BITS:
        raise LimitError(f"the template computes with numbers of more than {_MAX_BITS} bits")


def product_size(left: Any, right: Any) -> int:
    """Size of a string or list times a number."""
    if isinstance(right, int):
        return size(left) * max(right, 0)
    return size(right) * max(left, 0) if isinstance(left, int) else 0


def size(value: Any) -> int:
    """Length of a string or container; 0 for anything else."""
    return len(cast("str", value)) if isinstance(value, str | list | tuple | Mapping) else 0
