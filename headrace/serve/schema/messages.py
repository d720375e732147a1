"""`/v1/messages`: Anthropic's request body, and the conversation it means."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Field, Tag

from headrace.base.errors import RequestError
from headrace.serve.schema.support import StrictBody, content_kind

CacheHint = dict[str, Any] | None
"""`cache_control`: a hint; every prefix is cached here anyway."""


class MessageText(StrictBody):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: CacheHint = None
    citations: None = None


class Thinking(StrictBody):
    """Reasoning of an earlier answer; the signature is not looked at."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUse(StrictBody):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheHint = None


Content = Annotated[str, Tag("text")]


class ToolResult(StrictBody):
    """What a called function answered; an error is told to the model by a word before its text."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[
        Content | Annotated[list[MessageText] | None, Tag("parts")], Discriminator(content_kind)
    ] = None
    is_error: bool | None = None
    cache_control: CacheHint = None


AnyBlock = Annotated[MessageText | Thinking | ToolUse | ToolResult, Field(discriminator="type")]


class Turn(StrictBody):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Content | Annotated[list[AnyBlock], Tag("parts")], Discriminator(content_kind)]

    def to_chat(self) -> Iterator[dict[str, Any]]:
        """The same as messages of `/v1/chat/completions`; results of tools are messages of their own.

        Raises:
            RequestError: a block does not belong to the role.
        """
        if isinstance(self.content, str):
            yield {"role": self.role, "content": self.content}
            return
        made: dict[str, Any] = {"role": self.role, "content": ""}
        for block in self.content:
            self._check_role(block)
            if isinstance(block, ToolResult):
                if made["content"]:
                    yield made
                    made = {"role": self.role, "content": ""}
                said = ("Error: " if block.is_error else "") + _text(block.content)
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": said}
            elif isinstance(block, ToolUse):
                made.setdefault("tool_calls", []).append(_call(block))
            elif isinstance(block, Thinking):
                made["reasoning_content"] = made.get("reasoning_content", "") + block.thinking
            else:
                made["content"] += block.text
        if len(made) > 2 or made["content"] or not self.content:
            yield made

    def _check_role(self, block: object) -> None:
        allowed = {
            "user": (MessageText, ToolResult),
            "assistant": (MessageText, Thinking, ToolUse),
            "system": (MessageText,),
        }[self.role]
        if not isinstance(block, allowed):
            raise RequestError(
                f"messages: a message of role {self.role!r} cannot have a block of type "
                f"{getattr(block, 'type', '?')!r}",
                param="messages",
            )


class MessageTool(StrictBody):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheHint = None

    def to_chat(self) -> dict[str, Any]:
        """The same for `/v1/chat/completions`."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        for name in ("description", "strict"):
            if getattr(self, name) is not None:
                function[name] = getattr(self, name)
        return {"type": "function", "function": function}


class MessageToolChoice(StrictBody):
    """Whether and what to call."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        """The fields of `/v1/chat/completions`.

        Raises:
            RequestError: the name of the tool is missing, or is there where none belongs.
        """
        if (self.type == "tool") != (self.name is not None):
            raise RequestError(
                "tool_choice: name belongs to type 'tool', and to no other", param="tool_choice"
            )
        made: dict[str, Any] = {"tool_choice": {"any": "required"}.get(self.type, self.type)}
        if self.name is not None:
            made["tool_choice"] = {"type": "function", "function": {"name": self.name}}
        if self.disable_parallel_tool_use is not None:
            made["parallel_tool_calls"] = not self.disable_parallel_tool_use
        return made


class ThinkingConfig(StrictBody):
    """`thinking`: whether the model reasons is the template's affair; it may be told not to."""

    type: Literal["adaptive", "disabled"]
    display: Literal["omitted"] | None = None


class JsonFormat(StrictBody):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictBody):
    """`output_config`."""

    effort: str | None = None
    format: JsonFormat | None = None


class CountTokensBody(StrictBody):
    """Body of `/v1/messages/count_tokens`, and what both bodies share."""

    model: str | None = None
    messages: list[Turn]
    system: Annotated[
        Content | Annotated[list[MessageText] | None, Tag("parts")], Discriminator(content_kind)
    ] = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheHint = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_chat(self) -> dict[str, Any]:
        """The body of `/v1/chat/completions` that asks for the same.

        A last message of the assistant is the beginning of the answer.

        Raises:
            RequestError: a block does not belong to its message's role.
        """
        messages = [] if self.system is None else [{"role": "system", "content": _text(self.system)}]
        messages += [m for turn in self.messages for m in turn.to_chat()]
        made: dict[str, Any] = {"messages": messages}
        if messages and messages[-1]["role"] == "assistant":
            made["continue_final_message"] = True
        for name in ("model", "chat_template_kwargs"):
            if getattr(self, name) is not None:
                made[name] = getattr(self, name)
        if self.tools:
            made["tools"] = [tool.to_chat() for tool in self.tools]
        if self.tool_choice is not None:
            made |= self.tool_choice.to_chat()
        return made | self._manner()

    def _manner(self) -> dict[str, Any]:
        """How much the model thinks, and what the text must look like."""
        made: dict[str, Any] = {}
        if self.output_config is not None:
            if self.output_config.effort is not None:
                made["reasoning_effort"] = self.output_config.effort
            if self.output_config.format is not None:
                schema = {"name": "answer", "schema": self.output_config.format.schema_}
                made["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.thinking is not None:
            if self.thinking.type == "disabled":
                made["reasoning_effort"] = "none"
            made["include_reasoning"] = self.thinking.display != "omitted"
        return made

    @property
    def renamed(self) -> dict[str, str]:
        """Fields that have another name in `/v1/chat/completions`, and theirs here."""
        effort = (
            "thinking" if self.thinking is not None and self.thinking.type == "disabled" else "output_config"
        )
        return {
            "stop": "stop_sequences",
            "max_completion_tokens": "max_tokens",
            "parallel_tool_calls": "tool_choice",
            "reasoning_effort": effort,
            "response_format": "output_config",
            "structured_outputs": "output_config",
        }


class MessagesBody(CountTokensBody):
    """Body of `/v1/messages`; the fields that Anthropic has not are vLLM's."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, str | None] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    speculate: str | None = None
    timings: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        """The body of `/v1/chat/completions` that asks for the same.

        Raises:
            RequestError: a block does not belong to its message's role.
        """
        made = super().to_chat()
        for name in _SAME:
            if (value := getattr(self, name)) is not None:
                made[name] = value
        if self.stop_sequences:
            made["stop"] = self.stop_sequences
        return made


_SAME = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "priority",
    "request_id",
    "cache_salt",
    "speculate",
)


def _text(content: str | list[MessageText] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.text for block in content or [])


def _call(block: ToolUse) -> dict[str, Any]:
    # Templates and the other endpoints expect OpenAI's form, with arguments in JSON.
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
