"""What an answer must look like: a JSON schema, a regular expression or a context-free grammar, as text.

Built by the constructors of `Grammar`; compiled where the tokens are drawn (`host/grammar`). Only what can be
told from the text alone is checked here: kinds, sizes, nesting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self, cast

from headrace.base.errors import RequestError

PARAM = "structured_outputs"
"""The field that errors name."""
MAX_GRAMMAR_BYTES = 256 << 10
MAX_DEPTH = 64
"""Most brackets that are open at once; a compiler that descends into itself must not run out of stack."""
MAX_CHOICE_LIST = 4096
MAX_WHITESPACE_PATTERN_CHARS = 256
WHITESPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,32}"
"""White space between the parts of JSON, when the request says nothing: one space, or a line break and an
indentation. A model that likes white space must not go on with it for ever."""


class GrammarKind(Enum):
    """How `Grammar.source` is to be read."""

    JSON = "json"
    """A JSON schema (draft 2020-12, the part that the compiler knows)."""
    REGEX = "regex"
    """A regular expression (Rust's syntax, no look-around), which matches the whole answer."""
    LARK = "lark"
    """A context-free grammar in Lark's syntax; its start rule is `start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A constraint on the whole answer, special tokens but the end token included.

    Raises:
        RequestError: the text is empty, too long, nested too deep, or no Unicode.
    """

    kind: GrammarKind
    source: str
    lead: str = ""
    """A grammar in Lark's syntax around this one, which it names `@answer`: what may come before it, or in
    its place. Empty: nothing."""

    def __post_init__(self) -> None:
        """Measure the text."""
        if not self.source:
            raise RequestError(f"the {self.kind.value} grammar is empty", param=PARAM)
        size = self._size() + len(self.lead.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise RequestError(
                f"the {self.kind.value} grammar has {size} bytes, limit {MAX_GRAMMAR_BYTES}; make it smaller",
                param=PARAM,
            )
        depth = max(_depth(self.source), _depth(self.lead))
        if depth > MAX_DEPTH:
            raise RequestError(
                f"the {self.kind.value} grammar opens {depth} brackets inside each other, limit {MAX_DEPTH}; "
                "use rules or $ref instead of nesting",
                param=PARAM,
            )

    def _size(self) -> int:
        try:
            return len(self.source.encode())
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the {self.kind.value} grammar has half of a surrogate pair at character {error.start}, "
                "which is no valid Unicode; take it out",
                param=PARAM,
            ) from error

    @classmethod
    def json(
        cls,
        schema: str | bool | Mapping[str, Any],
        *,
        whitespace: str = WHITESPACE,
        additional_properties: bool = True,
    ) -> Self:
        """JSON that is valid under a schema.

        Args:
            schema: the schema, or its text.
            whitespace: regular expression of the white space that may stand between parts; empty: none.
            additional_properties: whether objects may have properties that the schema does not name, where it
                does not say.

        Raises:
            RequestError: no schema, or one that is too large.
        """
        return cls(
            kind=GrammarKind.JSON,
            source=schema_text(schema, whitespace=whitespace, additional_properties=additional_properties),
        )

    @classmethod
    def json_object(cls, *, whitespace: str = WHITESPACE) -> Self:
        """Any JSON object."""
        return cls.json({"type": "object"}, whitespace=whitespace)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """What a regular expression matches as a whole."""
        return cls(kind=GrammarKind.REGEX, source=pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """One of these texts.

        Raises:
            RequestError: there is none, too many, or one of them is empty or no text.
        """
        if not 1 <= len(texts) <= MAX_CHOICE_LIST:
            raise RequestError(f"choice has {len(texts)} texts, allowed: 1 to {MAX_CHOICE_LIST}", param=PARAM)
        for text in cast("Sequence[object]", texts):
            if not isinstance(text, str) or not text:
                raise RequestError(
                    f"choice must hold texts that are not empty, got {text!r:.80}", param=PARAM
                )
        return cls(kind=GrammarKind.LARK, source="start: " + " | ".join(map(lark_string, texts)))

    @classmethod
    def lark(cls, source: str) -> Self:
        """A context-free grammar."""
        return cls(kind=GrammarKind.LARK, source=source)


def lark_string(text: str) -> str:
    """A text as a literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def schema_text(
    schema: str | bool | Mapping[str, Any],
    *,
    whitespace: str = WHITESPACE,
    additional_properties: bool = True,
) -> str:
    """A schema as the compiler reads it: what it reads from `x-guidance` is set here, never by the caller.

    Also the operand of `%json` in a Lark grammar. Arguments and errors as `Grammar.json`.
    """
    given = _parsed(schema) if isinstance(schema, str) else schema
    if len(whitespace) > MAX_WHITESPACE_PATTERN_CHARS:
        raise RequestError(
            f"whitespace_pattern has {len(whitespace)} characters, limit {MAX_WHITESPACE_PATTERN_CHARS}",
            param=PARAM,
        )
    if given is False:
        raise RequestError("the JSON schema `false` allows no value", param=PARAM)
    if given is not True and not isinstance(given, Mapping):
        raise RequestError(f"a JSON schema is an object, got {given!r:.80}", param=PARAM)
    rules: dict[str, Any] = {} if given is True else dict(cast("Mapping[str, Any]", given))
    options: dict[str, Any] = (
        {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    )
    rules["x-guidance"] = options
    try:
        if not additional_properties:
            rules = _closed(rules)
        return json.dumps(rules, ensure_ascii=False)
    except RecursionError:
        raise RequestError(f"the JSON schema is nested deeper than {MAX_DEPTH}", param=PARAM) from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"the JSON schema is no JSON: {error}", param=PARAM) from error


def _parsed(text: str) -> Any:
    if len(text) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"the JSON schema has {len(text)} characters, limit {MAX_GRAMMAR_BYTES}; make it smaller",
            param=PARAM,
        )
    try:
        return json.loads(text)
    except RecursionError:
        raise RequestError(f"the JSON schema is nested deeper than {MAX_DEPTH}", param=PARAM) from None
    except ValueError as error:
        raise RequestError(f"the JSON schema is no JSON: {error}", param=PARAM) from error


_HOLDERS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys whose values are schemas by name."""
_SCHEMAS = (
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
)
"""Keys that hold a schema or a list of schemas."""


def _closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in objects that name properties and do not say."""
    if isinstance(schema, (list, tuple)):
        return [_closed(item) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    made = dict(cast("Mapping[str, Any]", schema))
    for key, value in made.items():
        if key in _HOLDERS and isinstance(value, Mapping):
            made[key] = {name: _closed(item) for name, item in cast("Mapping[str, Any]", value).items()}
        elif key in _SCHEMAS:
            made[key] = _closed(value)
    is_object = "properties" in made or "patternProperties" in made
    if is_object and "additionalProperties" not in made and "unevaluatedProperties" not in made:
        made["additionalProperties"] = False
    return made


def _depth(text: str) -> int:
    """Most brackets open at once, wherever they stand: an upper bound of the nesting. Cost: linear."""
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}" and depth:
            depth -= 1
    return deepest
