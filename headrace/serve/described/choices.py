"""Answers of the completion endpoints and of embeddings."""

from typing import Any, Literal

from headrace.serve.described.errors import Described
from headrace.serve.described.timings import TimingFacts

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


class CachedTokens(Described):
    """Prompt tokens that the prefix cache held."""

    cached_tokens: int


class DraftFacts(Described):
    """Drafts of speculation that were checked, under OpenAI's names for predictions."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageFacts(Described):
    """Tokens: the prompt counted once, completions summed over choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: DraftFacts | None = None


class TokenFacts(Described):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenWithTop(TokenFacts):
    """A drawn token, and the most likely ones."""

    top_logprobs: list[TokenFacts]


class ChatLogprobs(Described):
    """Log-probabilities of a chat choice."""

    content: list[TokenWithTop]
    refusal: None


class PromptToken(Described):
    """A candidate at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]


class ChatMessage(Described):
    """The answer of the model."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(Described):
    """A choice."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatAnswer(Described):
    """Answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageFacts
    seed: int
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    timings: TimingFacts | None = None


class CompletionLogprobs(Described):
    """Log-probabilities of a completion choice: parallel lists."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Described):
    """A choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionAnswer(Described):
    """Answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageFacts
    seed: int
    timings: TimingFacts | None = None


class EmbeddingFacts(Described):
    """A vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Described):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(Described):
    """Answer of `/v1/embeddings`."""

    id: str
    object: Literal["list"]
    model: str
    data: list[EmbeddingFacts]
    usage: EmbeddingUsage
