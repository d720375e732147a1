"""What an answer must look like, as OpenAI (`response_format`) and vLLM (`structured_outputs`) spell it."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from headrace.base.errors import RequestError
from headrace.base.grammar import PARAM, WHITESPACE, Grammar
from headrace.serve.schema.support import StrictBody

RENAMED: Mapping[str, str] = {
    "guided_json": 'structured_outputs: {"json": …}',
    "guided_regex": 'structured_outputs: {"regex": …}',
    "guided_choice": 'structured_outputs: {"choice": […]}',
    "guided_grammar": 'structured_outputs: {"grammar": …}',
    "guided_whitespace_pattern": 'structured_outputs: {"json": …, "whitespace_pattern": …}',
    "guided_decoding_backend": "nothing: there is one",
}
"""Fields that older clients send, and what says the same now."""


class JsonSchemaFormat(StrictBody):
    """`response_format.json_schema`; the schema is enforced whatever `strict` says."""

    name: str = Field(max_length=256)
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(StrictBody):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def grammar(self) -> Grammar | None:
        """The constraint; None: any text.

        Raises:
            RequestError: the type and the schema do not go together, or the schema is too large.
        """
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise RequestError(
                f"response_format: type {self.type!r} "
                + ("needs json_schema" if self.json_schema is None else "has no json_schema"),
                param="response_format",
            )
        if self.type == "json_object":
            return Grammar.json_object()
        if self.json_schema is None:
            return None
        if self.json_schema.schema_ is None:
            return Grammar.json_object()
        return Grammar.json(self.json_schema.schema_)


class StructuredOutputs(StrictBody):
    """`structured_outputs`: exactly one constraint, and what JSON may have between its parts."""

    json_: str | bool | dict[str, Any] | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def to_grammar(self) -> Grammar:
        """The constraint.

        Raises:
            RequestError: none or several are given, an option does not apply, or it is too large.
        """
        given = [name for name in _KINDS if self._of(name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError(
                f"structured_outputs needs one of {', '.join(_KINDS)}; got {found}", param=PARAM
            )
        (kind,) = given
        self._check_options(kind)
        if self.regex is not None:
            return Grammar.regex(self.regex)
        if self.choice is not None:
            return Grammar.choice(self.choice)
        if self.grammar is not None:
            return Grammar.lark(self.grammar)
        schema = {"type": "object"} if self.json_ is None else self.json_
        return Grammar.json(
            schema,
            whitespace=self._whitespace(),
            additional_properties=not self.disable_additional_properties,
        )

    def _of(self, name: str) -> Any:
        return self.json_ if name == "json" else getattr(self, name)

    def _whitespace(self) -> str:
        if self.disable_any_whitespace:
            return ""
        return WHITESPACE if self.whitespace_pattern is None else self.whitespace_pattern

    def _check_options(self, kind: str) -> None:
        for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
            if getattr(self, name) and kind not in ("json", "json_object"):
                raise RequestError(f"structured_outputs: {name} goes with json, not with {kind}", param=PARAM)
        if self.disable_any_whitespace and self.whitespace_pattern:
            raise RequestError(
                "structured_outputs: disable_any_whitespace and whitespace_pattern exclude each other",
                param=PARAM,
            )


_KINDS = ("json", "json_object", "regex", "choice", "grammar")


def one_grammar(response_format: ResponseFormat | None, outputs: StructuredOutputs | None) -> Grammar | None:
    """The constraint of a body with both fields.

    Raises:
        RequestError: both ask for something, or one of them is wrong.
    """
    asked = None if response_format is None else response_format.grammar()
    if outputs is None:
        return asked
    if asked is not None:
        raise RequestError("response_format and structured_outputs exclude each other; give one", param=PARAM)
    return outputs.to_grammar()


def check_renamed(body: Mapping[str, Any]) -> None:
    """Refuse old names with the new spelling.

    Raises:
        RequestError: one of them is there.
    """
    for name, spelling in RENAMED.items():
        if name in body:
            raise RequestError(f"{name} is no longer a field; send {spelling}", param=name)
