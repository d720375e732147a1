"""`/v1/messages`: Anthropic's request body, and the conversation it means."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Field, Tag

from headrace.base.errors import RequestError
from headrace.serve.schema.sampling import StrictBody
from headrace.serve.schema.support import content_kind

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
    """What a called function answered."""

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
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
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


class CountTokensBody(StrictBody):
    """Body of `/v1/messages/count_tokens`, and what both bodies share."""

    model: str | None = None
    messages: list[Turn]
    system: Annotated[
        Content | Annotated[list[MessageText] | None, Tag("parts")], Discriminator(content_kind)
    ] = None
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
        return made


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
)
RENAMED: Mapping[str, str] = {"stop": "stop_sequences", "max_completion_tokens": "max_tokens"}
"""Fields that have another name in `/v1/chat/completions`."""


def _text(content: str | list[MessageText] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.text for block in content or [])


def _call(block: ToolUse) -> dict[str, Any]:
    # Templates and the other endpoints expect OpenAI's form, with arguments in JSON.
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
