"""Answers of `/v1/messages` and `/v1/responses`."""

from typing import Any, Literal

from headrace.serve.described.choices import CachedTokens, TokenWithTop
from headrace.serve.described.errors import Described
from headrace.serve.described.timings import TimingFacts


class MessageUsage(Described):
    """Tokens; `input_tokens` are those that the prefix cache did not hold."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class TextBlockFacts(Described):
    """A block of text."""

    type: Literal["text"]
    text: str


class ThinkingBlockFacts(Described):
    """A block of reasoning; the signature is empty."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlockFacts(Described):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageAnswer(Described):
    """Answer of `/v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlockFacts | ThinkingBlockFacts | ToolUseBlockFacts]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
    ]
    stop_sequence: str | None
    usage: MessageUsage
    timings: TimingFacts | None = None


class TokensCount(Described):
    """Answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class ResponseTextFacts(Described):
    """The text of an output message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenWithTop]


class ResponseMessage(Described):
    """An output item: text."""

    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[ResponseTextFacts]


class ResponseReasoningText(Described):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ResponseReasoning(Described):
    """An output item: reasoning."""

    id: str
    type: Literal["reasoning"]
    status: Literal["completed", "incomplete"]
    summary: list[Any]
    content: list[ResponseReasoningText]


class ResponseCall(Described):
    """An output item: a call."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class IncompleteDetails(Described):
    """Why an answer is incomplete."""

    reason: Literal["max_output_tokens"]


class InputDetails(CachedTokens):
    """Of the prompt's tokens."""

    cache_write_tokens: int


class OutputDetails(Described):
    """Of the output's tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class ResponseUsage(Described):
    """Tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseAnswer(Described):
    """Answer of `/v1/responses`."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "cancelled", "failed"]
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    output: list[ResponseMessage | ResponseReasoning | ResponseCall]
    usage: ResponseUsage
    seed: int
    model: str
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
    timings: TimingFacts | None = None
