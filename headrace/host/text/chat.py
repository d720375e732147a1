"""Conversations to prompts: the model's own Jinja template, run in a sandbox."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jinja2 import nodes
from jinja2.exceptions import TemplateError

from headrace.base import clock
from headrace.base.errors import RequestError
from headrace.host.text.template.budget import Budget
from headrace.host.text.template.lookalike import map_texts, unused_marks
from headrace.host.text.template.sandbox import BUDGET, MARKS, Sandbox
from headrace.host.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARS = 256 << 10
MAX_UNITS = 400_000
MAX_CHARS = 4 << 20
MAX_SECONDS = 0.8
"""Work, output and time of a rendering; callers with much text get more, in proportion."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The most common format, for models that bring no template; used only when asked for."""

Json = dict[str, Any]
_SANDBOX = Sandbox()


class ChatTemplate:
    """A model's chat template. Immutable, safe to share between threads.

    A template that is missing or broken is reported when it is used, so that such a model still completes
    text.

    Args:
        template: the Jinja source; None when the model brings none.
        special_tokens: `bos_token`, `eos_token` and so on, as the template may use them.
    """

    def __init__(self, template: str | None, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._fault = ""
        self._make: Callable[..., Any] | None = None
        self._reads_parts = False
        if template is None:
            self._fault = (
                "this model has no chat template; use the completions API, or start with a template "
                "(CHATML is the most common format)"
            )
        elif len(template) > MAX_TEMPLATE_CHARS:
            self._fault = (
                f"the chat template has {len(template)} characters; the limit is {MAX_TEMPLATE_CHARS}"
            )
        else:
            self._compile(template)

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
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """The prompt as token ids; only the template's special tokens become such, never the callers' words.

        The template is the authority on begin tokens: none is added to what it writes. Arguments and errors
        are those of `render`.
        """
        given = {"messages": messages, "tools": tools, **kwargs}
        marks = unused_marks(given.values(), 2)
        mark, lookalikes = marks[1], tokenizer.lookalikes
        variables = map_texts(given, lambda text: lookalikes.mark(text, mark))
        variables["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        text = self._render(variables, marks[0] if continue_final_message else "", marks)
        pieces = (p.replace(mark, "") if isinstance(p, str) else p for p in tokenizer.split(text))
        return tokenizer.encode_pieces(p for p in pieces if p)

    def _compile(self, template: str) -> None:
        try:
            tree, self._make = _SANDBOX.compile_bounded(template)
        except Exception as fault:  # noqa: BLE001  (the parser is not the only one to fail on a broken template)
            self._fault = f"the model's chat template is broken: {_reason(fault)}"
        else:
            self._reads_parts = any(_reads_content(loop.iter) for loop in tree.find_all(nodes.For))

    def _render(self, variables: Json, cut: str, marks: list[str]) -> str:
        """Renders; with `cut`, that mark ends the last message, and the text ends there."""
        if self._make is None:
            raise RequestError(self._fault, param="messages")
        messages = [self._tidy(m) for m in variables["messages"]]
        if not messages:
            raise RequestError("messages is empty; send at least one", param="messages")
        if cut:
            _extend_last(messages, cut)
        num_chars = _count_chars(variables)
        budget = Budget(
            units=MAX_UNITS + num_chars,
            chars=MAX_CHARS + 8 * num_chars,
            deadline_s=clock.now_s() + MAX_SECONDS + num_chars * 1e-7,
        )
        hidden: Json = {BUDGET: budget, MARKS: tuple(marks)}
        values = {**self._special_tokens, **variables, "messages": messages, **hidden}
        try:
            text = cast("str", self._make().render(values))
        except TemplateError as fault:
            raise RequestError(
                f"the model's chat template refuses: {_reason(fault)}", param="messages"
            ) from fault
        except Exception as fault:
            raise RequestError(
                f"the model's chat template fails on these messages: {_reason(fault)}", param="messages"
            ) from fault
        if not cut:
            return text
        end = text.rfind(cut)
        if end < 0:
            raise RequestError("the chat template does not write the last message", param="messages")
        return text[:end].replace(cut, "")

    def _tidy(self, message: Any) -> Json:
        """One message as templates expect it: text parts joined unless it reads parts, arguments parsed."""
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):  # type: ignore[union-attr]
            raise RequestError("each message needs a role and is an object", param="messages")
        tidy = dict(cast("Mapping[str, Any]", message))
        content = tidy.get("content")
        if content is None:
            tidy["content"] = ""
        elif isinstance(content, list) and not self._reads_parts:
            tidy["content"] = _joined(cast("list[Any]", content))
        if tidy.get("tool_calls"):
            tidy["tool_calls"] = [_parsed(call) for call in tidy["tool_calls"]]
        return tidy


def _reads_content(expression: nodes.Node) -> bool:
    """Whether a loop goes over a message's content, that is, over its parts."""
    found = [expression, *expression.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))]
    return any(
        (isinstance(n, nodes.Getattr) and n.attr == "content")
        or (isinstance(n, nodes.Getitem) and isinstance(n.arg, nodes.Const) and n.arg.value == "content")
        or (isinstance(n, nodes.Name) and n.name == "content")
        for n in found
    )


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


def _reason(fault: BaseException) -> str:
    text = str(fault) or type(fault).__name__
    return text if isinstance(fault, TemplateError) else f"{type(fault).__name__}: {text:.300}"
