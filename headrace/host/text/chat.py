"""Conversations to prompts: the model's own Jinja template, run in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from headrace.base.errors import RequestError
from headrace.host.text.template.lookalike import map_texts, unused_marks
from headrace.host.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARS = 256 << 10

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The most common format, for models that bring no template; used only when asked for."""

Json = dict[str, Any]


class ChatTemplate:
    """A model's chat template. Immutable, safe to share between threads.

    A template that is missing or broken is reported when it is used, so that such a model still completes
    text. It is compiled, and Jinja imported, at the first use or by `prepare`.

    Args:
        template: the Jinja source; None when the model brings none.
        special_tokens: `bos_token`, `eos_token` and so on, as the template may use them.
    """

    def __init__(self, template: str | None, special_tokens: Mapping[str, str]) -> None:
        self._source = template
        self._special_tokens = dict(special_tokens)

    def mentions(self, text: str) -> bool:
        """Whether the template's source has this text."""
        return self._source is not None and text in self._source

    def prepare(self) -> None:
        """Compile now what the first use would compile; a fault is kept for that use."""
        _ = self._compiled

    @cached_property
    def _compiled(self) -> tuple[Any, str]:
        """The program, or what is wrong with the template."""
        from headrace.host.text.template.program import TemplateProgram  # noqa: PLC0415 - imports Jinja

        if self._source is None:
            return None, (
                "this model has no chat template; use the completions API, or start with a template "
                "(CHATML is the most common format)"
            )
        if len(self._source) > MAX_TEMPLATE_CHARS:
            return None, (
                f"the chat template has {len(self._source)} characters; the limit is {MAX_TEMPLATE_CHARS}"
            )
        try:
            return TemplateProgram(self._source), ""
        except ValueError as fault:
            return None, str(fault)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, special tokens spelled out.

        Args:
            messages: OpenAI-style messages.
            add_generation_prompt: end with what begins the assistant's answer.
            continue_final_message: end within the last message, so that the model continues it; excludes
                `add_generation_prompt`.
            tools: OpenAI-style tool definitions.
            **kwargs: more variables for the template (`enable_thinking` ...).

        Raises:
            RequestError: no template, a template that fails or refuses the messages, or messages that make no
                sense.
        """
        variables = {
            "messages": messages,
            "tools": tools,
            **kwargs,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        marks = unused_marks(variables.values(), 1)
        return self._render(variables, marks[0] if continue_final_message else "", marks)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        most: int | None = None,
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids; only the template's special tokens become such, never the callers' words.

        The template is the authority on begin tokens: none is added to what it writes. Arguments and errors
        are those of `render`, and TooManyTokensError: there are more than `most`.
        """
        given = {"messages": messages, "tools": tools, **kwargs}
        marks = unused_marks(given.values(), 2)
        mark, lookalikes = marks[1], tokenizer.lookalikes
        variables = map_texts(given, lambda text: lookalikes.mark(text, mark))
        variables["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        text = self._render(variables, marks[0] if continue_final_message else "", marks)
        pieces = (p.replace(mark, "") if isinstance(p, str) else p for p in tokenizer.split(text))
        return tokenizer.encode_pieces((p for p in pieces if p), most)

    def _render(self, variables: Json, cut: str, marks: list[str]) -> str:
        """Renders; with `cut`, that mark ends the last message, and the text ends there."""
        program, fault = self._compiled
        if program is None:
            raise RequestError(fault, param="messages")
        messages = [self._tidy(m, program.reads_parts) for m in variables["messages"]]
        if not messages:
            raise RequestError("messages is empty; send at least one", param="messages")
        if cut:
            _extend_last(messages, cut)
        values = {**self._special_tokens, **variables, "messages": messages}
        text = cast("str", program.render(values, _count_chars(variables), tuple(marks)))
        if not cut:
            return text
        end = text.rfind(cut)
        if end < 0:
            raise RequestError("the chat template does not write the last message", param="messages")
        return text[:end].replace(cut, "")

    @staticmethod
    def _tidy(message: Any, reads_parts: bool) -> Json:
        """One message as templates expect it: text parts joined unless they read parts, arguments parsed."""
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):  # type: ignore[union-attr]
            raise RequestError("each message needs a role and is an object", param="messages")
        tidy = dict(cast("Mapping[str, Any]", message))
        content = tidy.get("content")
        if content is None:
            tidy["content"] = ""
        elif isinstance(content, list) and not reads_parts:
            tidy["content"] = _joined(cast("list[Any]", content))
        if calls := tidy.get("tool_calls"):
            if not isinstance(calls, list | tuple):
                raise RequestError("the tool_calls of a message must be a list", param="messages")
            tidy["tool_calls"] = [_parsed(call) for call in cast("Sequence[Any]", calls)]
        return tidy


def _joined(parts: list[Any]) -> str:
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part  # type: ignore[union-attr]
        if not isinstance(text, str):
            raise RequestError(
                "this model reads text only; a content part is something else", param="messages"
            )
        texts.append(text)
    return "\n".join(texts)


def _parsed(call: Any) -> Any:
    """A tool call with its arguments as an object, which is what templates write."""
    if not isinstance(call, dict):
        return call  # pyright: ignore[reportUnknownVariableType]
    outer = cast("Json", call)
    inner: Any = outer.get("function")
    function = cast("Json", inner) if isinstance(inner, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return outer
    try:
        value: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return outer
    if not isinstance(value, dict):
        return outer
    return {**outer, "function": {**function, "arguments": cast("Json", value)}}


def _extend_last(messages: list[Json], mark: str) -> None:
    content = messages[-1]["content"]
    if isinstance(content, list) and content and isinstance(content[-1], Mapping):
        parts = cast("list[Json]", content)
        messages[-1]["content"] = [*parts[:-1], {**parts[-1], "text": str(parts[-1].get("text", "")) + mark}]
    elif isinstance(content, str):
        messages[-1]["content"] = content + mark
    else:
        raise RequestError("continue_final_message needs a last message with text", param="messages")


def _count_chars(variables: Json) -> int:
    total = 0

    def add(text: str) -> str:
        nonlocal total
        total += len(text)
        return text

    map_texts(variables, add)
    return total
