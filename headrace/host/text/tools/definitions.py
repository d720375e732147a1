"""Tools as a caller defines them, checked once: names, sizes, and that the parameters are a JSON schema."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from headrace.base.errors import RequestError
from headrace.host.text.tools.schema import check_schema

MAX_TOOLS = 128
MAX_CHARS = 256 << 10
"""Characters of all definitions together, as JSON."""
MAX_DESCRIPTION = 16 << 10
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS = frozenset({"name", "description", "parameters", "strict"})

Json = Mapping[str, Any]
Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may ask to be called."""

    name: str
    description: str = ""
    parameters: Json | None = None
    """A JSON schema of an object; None: the function takes nothing, or anything."""
    strict: bool = False
    """The arguments must follow the schema."""

    def definition(self) -> dict[str, Any]:
        """OpenAI's spelling, which chat templates read."""
        function: dict[str, Any] = {"name": self.name, "description": self.description}
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Which tools an answer may call, and whether it must."""

    tools: tuple[Tool, ...] = ()
    """What the model is told about."""
    mode: Mode = "auto"
    names: frozenset[str] = frozenset()
    """What it may call; some or all of `tools`."""
    parallel: bool = True
    """It may call several."""

    @property
    def is_active(self) -> bool:
        """Calls may occur in the answer."""
        return bool(self.tools) and self.mode != "none"

    @property
    def needs_grammar(self) -> bool:
        """The answer must be held to calls, or its arguments to their schema."""
        return self.is_active and (self.mode == "required" or any(t.strict for t in self.callable()))

    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return tuple(t for t in self.tools if t.name in self.names)


NO_TOOLS = ToolUse()


def read_tools(given: Sequence[Any]) -> tuple[Tool, ...]:
    """Tools from OpenAI's spelling.

    Raises:
        RequestError: a definition is malformed, too large, or its name is used twice.
    """
    if len(given) > MAX_TOOLS:
        raise RequestError(f"tools has {len(given)} entries, limit {MAX_TOOLS}", param="tools")
    tools = tuple(_read_tool(i, item) for i, item in enumerate(given))
    try:
        size = len(json.dumps([t.definition() for t in tools]))
    except (TypeError, ValueError) as fault:
        raise RequestError(f"tools: a definition is no JSON: {fault}", param="tools") from fault
    if size > MAX_CHARS:
        raise RequestError(f"tools have {size} characters, limit {MAX_CHARS}: shorten them", param="tools")
    names = [t.name for t in tools]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools: the name {name!r} is used twice", param="tools")
    return tools


def read_use(tools: Sequence[Any] | None, choice: Any = None, parallel: bool | None = None) -> ToolUse:
    """What OpenAI's `tools`, `tool_choice` and `parallel_tool_calls` ask for.

    Raises:
        RequestError: a value is malformed, or the choice names what is no tool.
    """
    known = read_tools(tools or ())
    use = ToolUse(tools=known, names=frozenset(t.name for t in known), parallel=parallel is not False)
    mode, names = _read_choice(choice, bool(known))
    if mode == "required" and not known:
        raise RequestError("tool_choice asks for a call, but there are no tools", param="tool_choice")
    for name in names or ():
        if name not in use.names:
            raise RequestError(
                f"tool_choice names {name[:64]!r}, which is not among the tools", param="tool_choice"
            )
    chosen = use.names if names is None else names
    is_named = isinstance(choice, dict) and cast("dict[str, Any]", choice).get("type") == "function"
    return ToolUse(tools=known, mode=mode, names=chosen, parallel=use.parallel and not is_named)


def _read_tool(index: int, item: Any) -> Tool:
    where = f"tools[{index}]"
    if not isinstance(item, Mapping):
        raise RequestError(f"{where} must be an object", param="tools")
    outer = cast("Json", item)
    kind = outer.get("type")
    if kind != "function":
        raise RequestError(
            f"{where}.type is {kind!r:.60}; only 'function' tools are supported", param="tools"
        )
    function = outer.get("function")
    if not isinstance(function, Mapping) or set(outer) - {"type", "function"}:
        raise RequestError(f"{where} needs exactly the fields type and function", param="tools")
    fields = cast("Json", function)
    unknown = [str(key) for key in fields if key not in _FIELDS]
    if unknown:
        raise RequestError(f"{where}.function: unknown field {unknown[0][:60]!r}", param="tools")
    return Tool(
        name=_read_name(where, fields.get("name")),
        description=_read_description(where, fields.get("description")),
        parameters=_read_parameters(where, fields.get("parameters")),
        strict=_read_strict(where, fields.get("strict")),
    )


def _read_name(where: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name must be 1 to 64 letters, digits, _ or -, got {name!r:.80}", param="tools"
        )
    return name


def _read_description(where: str, text: Any) -> str:
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > MAX_DESCRIPTION:
        raise RequestError(
            f"{where}.function.description must be a text of at most {MAX_DESCRIPTION} characters",
            param="tools",
        )
    return text


def _read_parameters(where: str, schema: Any) -> Json | None:
    if schema is None:
        return None
    check_schema(schema, f"{where}.function.parameters", "tools")
    fields = cast("Json", schema)
    if fields.get("type", "object") != "object":
        raise RequestError(f"{where}.function.parameters must be a JSON schema of type object", param="tools")
    return fields or None


def _read_strict(where: str, value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{where}.function.strict must be true or false", param="tools")
    return bool(value)


def _read_choice(choice: Any, has_tools: bool) -> tuple[Mode, frozenset[str] | None]:
    """The mode, and the names that may be called; None: all."""
    if choice is None:
        return ("auto" if has_tools else "none"), None
    if choice in ("none", "auto", "required"):
        return choice, None
    if isinstance(choice, Mapping):
        fields = cast("Json", choice)
        kind, inner = fields.get("type"), fields.get(str(fields.get("type")))
        if kind == "function" and isinstance(inner, Mapping):
            return "required", frozenset({_name_in(cast("Json", inner))})
        if kind == "allowed_tools" and isinstance(inner, Mapping):
            return _read_allowed(cast("Json", inner))
    raise RequestError(
        'tool_choice must be \'none\', \'auto\', \'required\', {"type": "function", "function": {"name": …}} '
        f'or {{"type": "allowed_tools", …}}, got {choice!r:.80}',
        param="tool_choice",
    )


def _read_allowed(allowed: Json) -> tuple[Mode, frozenset[str]]:
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise RequestError(
            "tool_choice.allowed_tools needs mode ('auto' or 'required') and a list of tools",
            param="tool_choice",
        )
    names: set[str] = set()
    for tool in cast("list[Any]", tools):
        inner: Any = cast("Json", tool).get("function") if isinstance(tool, Mapping) else None
        if not isinstance(inner, Mapping):
            raise RequestError("tool_choice.allowed_tools: a tool needs function.name", param="tool_choice")
        names.add(_name_in(cast("Json", inner)))
    return cast("Mode", mode), frozenset(names)


def _name_in(function: Json) -> str:
    name = function.get("name")
    if not isinstance(name, str):
        raise RequestError("tool_choice: the function's name must be a text", param="tool_choice")
    return name
