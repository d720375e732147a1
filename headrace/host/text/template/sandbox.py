"""Chat templates are programs from strangers: here they run with bounded work, output and reach.

Jinja's immutable sandbox keeps templates away from Python's internals. On top of it every operation that can
repeat or grow is charged to the `Budget` of the rendering: loops per turn, strings and lists by size, output
by character. To that end the syntax tree is rewritten before it is compiled: loops, literals, `~` and static
text become filters and output expressions, which know the context and so the budget.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.base import clock
from headrace.host.text.template.budget import (
    MAX_WIDTH,
    WIDE,
    Budget,
    LimitError,
    check_bits,
    check_format,
    check_growth,
    check_width,
    product_size,
    size,
)

BUDGET = " budget"
"""Name of the budget among the template's variables; no template can spell it."""
MARKS = " marks"
"""Name of the characters that `tojson` must leave as they are."""
_STRING_METHODS = frozenset(
    {
        *("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith"),
        *("upper", "lower", "title", "capitalize", "casefold", "swapcase", "replace", "find", "rfind"),
        *("index", "rindex", "count", "join", "removeprefix", "removesuffix", "partition"),
        *("rpartition", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "isnumeric"),
        *("isdecimal", "istitle", "center", "ljust", "rjust", "zfill"),
    }
)
_CONTAINER_METHODS = frozenset({"get", "items", "keys", "values", "copy", "index", "count"})
_FILTERS = frozenset(
    {
        *("abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape"),
        *("first", "float", "groupby", "indent", "int", "items", "join", "last", "length", "list"),
        *("lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe"),
        *("select", "selectattr", "slice", "sort", "string", "sum", "title", "trim", "truncate"),
        *("unique", "upper", "wordcount"),
    }
)
_DEEP = frozenset({"string", "join", "e", "escape"})


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that `context` belongs to."""
    return cast("Budget", context.parent[BUDGET])


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all chat templates. Holds no state of a rendering; safe to share between threads."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # folding constants would run them outside any budget
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=_written,
        )
        known = self.filters
        self.filters = {name: _bounded(name, known[name]) for name in sorted(_FILTERS)}
        self.filters |= {"tojson": _to_json, "turns ": _turns, "made ": _made, "concat ": _concat}
        names = cast("Any", self.globals)  # pyright: ignore[reportUnknownMemberType]
        names.pop("lipsum", None)
        names |= {"raise_exception": _raise, "strftime_now": _strftime_now}

    def compile_bounded(self, source: str) -> tuple[nodes.Template, Callable[..., Any]]:
        """Parses, rewrites and compiles; returns the tree as written and a function that makes the template.

        Raises:
            TemplateError: the source is no valid template, or uses recursive loops.
        """
        tree = self.parse(source)
        written = self.parse(source)
        _rewrite(tree)
        code = self.compile(tree)
        return written, lambda: self.template_class.from_code(self, code, self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Plain values show only a known set of methods."""
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, Mapping | list | tuple):
            return attr in _CONTAINER_METHODS
        if obj is None or isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Leaves `str.format` to `is_safe_attribute`, which refuses it: its fields may be of any width."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Reaching for something unsafe is an error, not an empty value."""
        raise SecurityError(f"a template may not use {attribute!r} of a {type(obj).__name__}")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic whose result is bounded before it is computed."""
        budget = budget_of(context)
        if isinstance(left, str) and operator == "%":
            check_format(left)
            budget.weigh(right)
        elif operator == "*":
            budget.hold(product_size(left, right))
        elif operator == "+":
            budget.hold(size(left) + size(right))
        if isinstance(left, int) and isinstance(right, int):
            check_bits(operator, left, right)
        result: object = super().call_binop(context, operator, left, right)
        if operator == "*":
            budget.weigh(result)
        budget.spend(1)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls, with methods of strings bounded before they run."""
        budget = budget_of(__context)
        budget.spend(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = check_growth(budget, __obj.__name__, owner, args)
        return super().call(__context, __obj, *args, **kwargs)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _rewrite(tree: nodes.Node) -> None:
    """Routes what may repeat or grow through filters and output expressions."""
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise TemplateError("recursive loops are not supported in chat templates")
        loop.iter = _filter(loop.iter, "turns ")
    for output in tree.find_all(nodes.Output):
        output.nodes = [
            nodes.Const(n.data, lineno=n.lineno) if isinstance(n, nodes.TemplateData) else n
            for n in output.nodes
        ]
    _wrap_values(tree)


def _wrap_values(parent: nodes.Node) -> None:
    for name, value in parent.iter_fields():
        if isinstance(value, nodes.Node):
            _wrap_values(value)
            setattr(parent, name, _wrapped(value))
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            for item in items:
                if isinstance(item, nodes.Node):
                    _wrap_values(item)
            items[:] = [_wrapped(item) for item in items]


def _wrapped(node: Any) -> Any:
    if isinstance(node, nodes.Concat):
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "concat ")
    if isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return _filter(node, "made ")
    return node


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """One of Jinja's filters, with its input and its growth charged."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def run(context: Context, value: Any = "", *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        if isinstance(value, Iterator):
            value = list(budget.turns(cast("Iterator[Any]", value)))
        if name in _DEEP:
            budget.weigh(value)
        budget.hold(size(value))
        if name == "join":
            budget.hold(size(value) * size(args[0] if args else kwargs.get("d", "")))
        args = check_growth(budget, name, value, args)
        if name in WIDE:
            check_width(kwargs.values())
        lead = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }.get(wanted, ())
        result = function(*lead, value, *args, **kwargs)
        if isinstance(result, Iterator):
            return budget.turns(cast("Iterator[Any]", result))
        budget.hold(size(result))
        return result

    return run


@pass_context
def _written(context: Context, value: Any) -> str:
    """Every piece of output passes here."""
    budget = budget_of(context)
    budget.weigh(value)
    text = str(value)
    budget.chars -= len(text)
    if budget.chars < 0:
        raise LimitError("the template writes too much text")
    return text


@pass_context
def _turns(context: Context, items: Any) -> Iterator[Any]:
    return budget_of(context).turns(items)


@pass_context
def _made(context: Context, value: Any) -> Any:
    budget_of(context).weigh_nested(value)
    return value


@pass_context
def _concat(context: Context, values: Any) -> str:
    budget_of(context).weigh(values)
    return "".join(map(str, values))


@pass_context
def _to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Python writes it, not escaped for HTML."""
    budget_of(context).weigh(value)
    check_width((indent, *(separators or ())))
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        for mark in context.parent[MARKS]:
            text = text.replace(f"\\u{ord(mark):04x}", mark)
    return text


def _raise(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > MAX_WIDTH or re.search(r"%[^a-zA-Z%]*\d", form):
        raise SecurityError("the template asks for a date in a form that is too wide")
    return datetime.fromtimestamp(clock.unix_s()).strftime(form)
