"""`/v1/chat/completions`: the request body."""

from typing import Any, Literal

from pydantic import ConfigDict

from headrace.base.errors import RequestError
from headrace.base.request import MAX_LOGPROBS, SamplingParams
from headrace.engine.chat.prompt import ChatOptions
from headrace.host.text.tools.definitions import read_use
from headrace.serve.schema.sampling import SamplingBody
from headrace.serve.schema.support import StrictBody

RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "self",
        "tokenize",
        "tokenizer",
        "tools",
    }
)
"""Names that a request must not hand to the template: other fields set them, or nobody does."""


class TextPart(StrictBody):
    """One piece of a message's content; only text."""

    type: Literal["text"]
    text: str


class Message(StrictBody):
    """One message; the fields of a reply may come back with it, the template sees what it uses."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), hide_input_in_errors=True)

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    def num_bytes(self) -> int:
        """Bytes of the text, without what the template makes of it."""
        parts = self.content if isinstance(self.content, list) else [self.content or ""]
        texts = [part if isinstance(part, str) else part.text for part in parts]
        texts += [self.role, self.reasoning_content or ""]
        return sum(len(text.encode("utf-8", "replace")) for text in texts)

    def to_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: content is text."""
        content = self.content
        text = "".join(part.text for part in content) if isinstance(content, list) else content
        message: dict[str, Any] = {"role": self.role, "content": text if text is not None else ""}
        for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
            value = getattr(self, name)
            if value is not None:
                message[name] = value
        return message


class ChatBody(SamplingBody):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None

    def options(self) -> ChatOptions:
        """What the conversation asks for besides its messages.

        Raises:
            RequestError: a tool is malformed, or two fields contradict each other.
        """
        use = read_use(self.tools, self.tool_choice, self.parallel_tool_calls)
        return ChatOptions(
            template_kwargs=self.template_kwargs(),
            tools=use,
            effort=self.reasoning_effort,
            shows_reasoning=self.include_reasoning is not False,
            thinking_budget=self.thinking_token_budget,
        )

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """The sampling parameters; without a limit the answer may fill the context.

        Raises:
            RequestError: a value is out of range, or two fields contradict each other.
        """
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if not 0 <= (self.top_logprobs or 0) <= MAX_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be in [0, {MAX_LOGPROBS}], got {self.top_logprobs}", param="top_logprobs"
            )
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise RequestError(
                "max_tokens and max_completion_tokens differ; give one of them", param="max_completion_tokens"
            )
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.to_params(defaults, max_tokens=limit, logprobs=logprobs)

    def template_kwargs(self) -> dict[str, Any]:
        """Arguments of the chat template.

        Raises:
            RequestError: no message, or two fields contradict each other.
        """
        if not self.messages:
            raise RequestError("messages must not be empty", param="messages")
        given = dict(self.chat_template_kwargs or {})
        for name in given:
            if name in RESERVED or not name.isidentifier() or len(name) > 64:
                raise RequestError(
                    f"chat_template_kwargs must not set {name[:64]!r}", param="chat_template_kwargs"
                )
        add, go_on = self.add_generation_prompt, bool(self.continue_final_message)
        if add and go_on:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other",
                param="continue_final_message",
            )
        if go_on:
            given["continue_final_message"] = True
            given["add_generation_prompt"] = False
        elif add is not None:
            given["add_generation_prompt"] = add
        return given
