"""`/v1/responses`: the request body, and the conversation it means."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from headrace.base.errors import RequestError
from headrace.serve.schema.support import StrictBody, content_kind

ItemStatus = Literal["in_progress", "completed", "incomplete"] | None


class InputText(StrictBody):
    """A text part; those of earlier answers may come back with what belongs to them."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class Refusal(StrictBody):
    """A refusal of an earlier answer."""

    type: Literal["refusal"]
    refusal: str


Parts = list[Annotated[InputText | Refusal, Field(discriminator="type")]]
Content = Annotated[Annotated[str, Tag("text")] | Annotated[Parts, Tag("parts")], Discriminator(content_kind)]


class InputMessage(StrictBody):
    """One message, or an output message of an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: ItemStatus = None
    phase: str | None = None


class FunctionCall(StrictBody):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus = None


class FunctionOutput(StrictBody):
    """What a called function answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: ItemStatus = None


class ReasoningText(StrictBody):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class Reasoning(StrictBody):
    """Reasoning of an earlier answer."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[Any] | None = None
    encrypted_content: None = None
    id: str | None = None
    status: ItemStatus = None


def _item_kind(value: object) -> str | None:
    """The tag of an input item; a message may leave its type out."""
    kind: object = getattr(value, "type", None)
    if isinstance(value, dict):
        kind = value.get("type", "message")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return kind if isinstance(kind, str) else None


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")],
    Discriminator(_item_kind),
]


class FunctionTool(StrictBody):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(StrictBody):
    """`tool_choice`: this function."""

    type: Literal["function"]
    name: str


class TextFormat(StrictBody):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextConfig(StrictBody):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(StrictBody):
    """`reasoning`; there are no summaries."""

    effort: str | None = None
    summary: None = None


class ResponseStreamOptions(StrictBody):
    """`stream_options`."""

    include_obfuscation: Literal[False] | None = None


class ResponsesBody(StrictBody):
    """Body of `/v1/responses`; the fields that OpenAI has not are vLLM's."""

    model: str | None = None
    input: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[Item], Tag("parts")], Discriminator(content_kind)
    ]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    speculate: str | None = None
    timings: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_chat(self) -> dict[str, Any]:
        """The body of `/v1/chat/completions` that asks for the same."""
        made: dict[str, Any] = {n: v for n in _SAME if (v := getattr(self, n)) is not None}
        made["messages"] = list(self._messages())
        if self.max_output_tokens is not None:
            made["max_completion_tokens"] = self.max_output_tokens
        if self.top_logprobs is not None or self.include:
            made["logprobs"] = True
        made |= self._shape()
        if self.tools:
            made["tools"] = [_tool(tool) for tool in self.tools]
        if isinstance(self.tool_choice, NamedFunction):
            made["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        return made

    def _shape(self) -> dict[str, Any]:
        """What the text must look like, and how much the model thinks."""
        made: dict[str, Any] = {}
        if self.reasoning is not None and self.reasoning.effort is not None:
            made["reasoning_effort"] = self.reasoning.effort
        if self.text is not None:
            if self.text.verbosity is not None:
                made["verbosity"] = self.text.verbosity
            if self.text.format is not None:
                made["response_format"] = _format(self.text.format)
        return made

    def _messages(self) -> Iterator[dict[str, Any]]:
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        turn = _Turn()  # reasoning, text and calls of one answer are several items, but one message
        for item in self.input:
            if isinstance(item, InputMessage) and item.role != "assistant":
                yield from turn.end()
                role = "system" if item.role == "developer" else item.role
                yield {"role": role, "content": _text(item.content)}
            elif isinstance(item, FunctionOutput):
                yield from turn.end()
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
            else:
                yield from turn.add(item)
        yield from turn.end()


class _Turn:
    """A message of the assistant, gathered from items."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def add(self, item: InputMessage | FunctionCall | Reasoning) -> Iterator[dict[str, Any]]:
        """Take an item; yields the message before, when the item begins another one."""
        begins: set[str] = {"reasoning_content", "content", "tool_calls"}
        if isinstance(item, InputMessage):
            begins = {"content", "tool_calls"}
        elif isinstance(item, FunctionCall):
            begins = set()
        if begins & self._made.keys():
            yield from self.end()
        if isinstance(item, InputMessage):
            self._made["content"] = _text(item.content)
        elif isinstance(item, FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            self._made.setdefault("tool_calls", []).append(call)
        elif item.content:
            self._made["reasoning_content"] = "".join(part.text for part in item.content)

    def end(self) -> Iterator[dict[str, Any]]:
        """The message, if there is one."""
        if self._made:
            yield {"role": "assistant", "content": "", **self._made}
            self._made = {}


_SAME = (
    "model",
    "temperature",
    "top_p",
    "top_logprobs",
    "tool_choice",
    "parallel_tool_calls",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "priority",
    "request_id",
    "cache_salt",
    "speculate",
    "chat_template_kwargs",
)
RENAMED: Mapping[str, str] = {
    "logprobs": "top_logprobs",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning",
    "response_format": "text",
    "structured_outputs": "text",
    "verbosity": "text",
}
"""Fields that have another name in `/v1/chat/completions`."""


def _text(content: str | Parts) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude_none=True, exclude={"type"})}


def _format(form: TextFormat) -> dict[str, Any]:
    """`response_format` of the chat endpoint.

    Raises:
        RequestError: a schema is missing, or is there where none belongs.
    """
    if form.type != "json_schema":
        for name in form.model_fields_set - {"type"}:
            if getattr(form, name) is not None:
                spelled = name.rstrip("_")
                raise RequestError(
                    f"text.format: {spelled} needs type 'json_schema', got {form.type!r}", param="text"
                )
        return {"type": form.type}
    if form.schema_ is None:
        raise RequestError("text.format: json_schema needs a schema", param="text")
    given = form.model_dump(exclude_none=True, exclude={"type", "schema_"})
    return {"type": "json_schema", "json_schema": {"name": "answer", **given, "schema": form.schema_}}
