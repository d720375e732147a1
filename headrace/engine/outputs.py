"""What the engine gives back: deltas of requests, usage, health and counters.

A request's answer is a sequence of `RequestOutput`: each carries the news since the one before. Joining the
`text` of
a choice's deltas gives its whole text; exactly one delta of each choice has a `finish_reason`; the last
output has
`finished` set and the final usage.

`Usage`, `ChoiceDelta` and `RequestOutput` are made for every token of every stream, and so are not frozen:
that takes three times as long. Nobody changes them all the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import HeadraceError
from headrace.base.metrics.drafts import DraftReport
from headrace.base.step import TokenLogprobs
from headrace.host.text.parts.events import Message, Part


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens of a request so far: the prompt counted once, the completions summed over choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache held when the first choice was admitted."""
    accepted_drafts: int = 0
    """Drafts that were checked and accepted, of the choices that ended."""
    rejected_drafts: int = 0
    """Drafts that were checked in vain; none of them is a token of the completion."""


@dataclass(slots=True, kw_only=True)
class ChoiceDelta:
    """News of one choice since the output before."""

    index: int
    text: str = ""
    """New text; held-back text (a possible stop string, half a character) comes later."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per id of `token_ids` when log-probabilities were asked for."""
    finish_reason: str | None = None
    """`stop`, `length`, `tool_calls`, `abort` or `error`; set in exactly one delta of the choice."""
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the choice.

    None for the model's own end tokens and for length.
    """
    text_offset: int = 0
    """Characters of this choice's text before this delta."""
    cumulative_logprob: float | None = None
    """Sum of the log-probabilities of the answer's tokens, of an answer that a beam search found."""
    parts: tuple[Part, ...] | None = None
    """The new text as content, reasoning and tool calls; None: this answer is not split, all is content.

    Parts may come later than their text: what may be a call is held until it is one. Joined over the deltas,
    they are the whole answer.
    """


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One piece of a request's answer."""

    request_id: str
    prompt_ids: tuple[int, ...]
    choices: tuple[ChoiceDelta, ...]
    finished: bool = False
    usage: Usage = field(default_factory=Usage)
    seed: int = 0
    """The seed used (given or derived); repeating the request with it gives the same answer."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """For each prompt token.

    The first is None. Given once, with the first output after the prompt was computed.
    """
    timings: Mapping[str, float] | None = None
    """With the last output.

    `queue_s`, `prefill_s`, `ttft_s`, `decode_s`, `e2e_s`, `steps`, `preempted` and so on.
    """
    drafts: DraftReport | None = None
    """With the last output: why as many drafts were checked as were; None: there are no drafts."""
    error: HeadraceError | None = None
    """Why the request failed after its first output; errors before it are raised."""
    pooled: bytes = b""
    """The prompt's pooled hidden states, little-endian float32, with the last output of an embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """Whether the engine lives; follows the step counter, answered outside the engine thread."""

    alive: bool
    """The engine process (or thread) exists."""
    making_progress: bool
    """Steps advance, or there is no work."""
    ready: bool
    """New requests are admitted."""
    reason: str = ""
    """Why one of them is false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Numbers for metrics and diagnosis, by name (snake case, unit at the end).

    Counters only grow: `steps`, `step_seconds`, `idle_seconds`, `prompt_tokens`, `computed_prompt_tokens`,
    `cached_prompt_tokens`, `generated_tokens`, `preemptions`, `numeric_errors`, `requests_added`,
    `finished_stop`, `finished_length`, `finished_abort`, `finished_error`.
    Gauges: `running`, `waiting`, `waiting_tokens`, `blocks_total`, `blocks_free`, `blocks_held`,
    `blocks_evictable`,
    `weight_bytes`, `kv_bytes`.
    """

    counters: Mapping[str, float]
    gauges: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One whole choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cumulative_logprob: float | None = None
    """See `ChoiceDelta`."""
    message: Message | None = None
    """Content, reasoning and tool calls; None: the answer was not split, `text` is the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingResult:
    """One text as a vector."""

    embedding: NDArray[np.float32]
    """[E] float32."""
    prompt: str | None
    prompt_ids: tuple[int, ...]
    usage: Usage

    @classmethod
    def of(
        cls, output: RequestOutput, prompt: str | None = None, *, normalize: bool = True
    ) -> "EmbeddingResult":
        """From the last output of a request that asked for pooling.

        Args:
            output: the output.
            prompt: its text, when it came as text.
            normalize: divide by the Euclidean norm, in float64; a vector of zeros stays one.
        """
        vector = np.frombuffer(output.pooled, "<f4")
        if normalize:
            wide = vector.astype(np.float64)
            norm = math.sqrt(math.fsum((wide * wide).tolist()))
            vector = (wide / (norm or 1.0)).astype(np.float32)
        return cls(embedding=vector, prompt=prompt, prompt_ids=output.prompt_ids, usage=output.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The whole answer to one prompt.

    `text`, `token_ids` and `finish_reason` are those of the first choice.
    """

    request_id: str
    prompt: str | None
    prompt_ids: tuple[int, ...]
    choices: tuple[Completion, ...]
    usage: Usage
    seed: int
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    drafts: DraftReport | None = None
    """Why as many drafts were checked as were; None: there are no drafts."""

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Finish reason of the first choice."""
        return self.choices[0].finish_reason
