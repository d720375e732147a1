"""The fields that both completion endpoints share, and their way to `SamplingParams`.

Values that a request leaves out come from the engine's defaults (the model's generation file, then the
built-in ones); the order is request, server setting, model file, built-in.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, ValidationError

from headrace.base.errors import RequestError
from headrace.base.request import SamplingParams
from headrace.base.tasks import BeamSearch
from headrace.serve.schema.bounds import check_bounds
from headrace.serve.schema.structured import ResponseFormat, StructuredOutputs, check_renamed, one_grammar
from headrace.serve.schema.support import StrictBody, drop_neutral, to_request_error

M = TypeVar("M", bound=StrictBody)

_COPIED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "n",
    "prompt_logprobs",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "speculate",
)
_LISTS = ("allowed_token_ids", "stop_token_ids", "bad_words")


def needs(name: str) -> ConfigDict:
    """The configuration of a body with a field that is checked by hand, and described as required."""

    def describe(schema: dict[str, Any]) -> None:
        schema["required"] = [*schema.get("required", ()), name]
        schema["properties"][name].pop("default", None)

    return ConfigDict(json_schema_extra=describe)


class StreamOptions(StrictBody):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingBody(StrictBody):
    """Fields of both completion endpoints; None means not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: int | None = None
    speculate: str | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    timings: bool | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def wants_usage_chunk(self) -> bool:
        """A stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_everywhere(self) -> bool:
        """Every chunk of a stream carries the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def to_params(self, defaults: SamplingParams, **more: Any) -> SamplingParams:
        """Sampling parameters: what is given here, else the defaults.

        Args:
            defaults: the engine's.
            more: fields that the endpoints spell differently (`max_tokens`, `logprobs`).

        Raises:
            RequestError: a value is out of range.
        """
        given: dict[str, Any] = {k: v for k in _COPIED if (v := getattr(self, k)) is not None}
        given |= {k: tuple(v) for k in _LISTS if (v := getattr(self, k)) is not None}
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.logit_bias is not None:
            given["logit_bias"] = _bias(self.logit_bias)
        grammar = one_grammar(self.response_format, self.structured_outputs)
        if grammar is not None:
            given["structured"] = grammar
        given |= more
        if self.use_beam_search:
            return replace(SamplingParams(temperature=0.0), **given, beams=self._beams())
        for name in ("length_penalty", "early_stopping"):
            if getattr(self, name) is not None:
                raise RequestError(f"{name} belongs to use_beam_search; leave it out", param=name)
        if self.num_kept is not None:
            given |= {"n": self.best_of, "logprobs": given.get("logprobs") or 0}
        return replace(defaults, **given)

    @property
    def num_kept(self) -> int | None:
        """Choices to keep of `best_of` drawn ones; None: all.

        Raises:
            RequestError: fewer are drawn than kept, or they are streamed.
        """
        kept = self.n or 1
        if self.best_of is None or self.best_of == kept or self.use_beam_search:
            return None
        if self.best_of < kept:
            raise RequestError(f"best_of must be at least n={kept}, got {self.best_of}", param="best_of")
        if self.stream:
            raise RequestError(
                "best_of above n cannot be streamed: the best are known at the end", param="stream"
            )
        return kept

    def _beams(self) -> BeamSearch:
        if self.stream:
            raise RequestError(
                "a beam search cannot be streamed: its answers are known at the end", param="stream"
            )
        return BeamSearch(
            width=self.best_of or self.n or 1,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=bool(self.early_stopping),
        )


def validate(
    model: type[M], body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]] | None = None
) -> M:
    """A body as its model.

    Raises:
        RequestError: a field is unknown, unsupported, of a wrong type, or a list is longer than its limit.
    """
    check_bounds(body, model.counted_by_hand)
    check_renamed(body)
    kept = drop_neutral(body, neutral or {})
    if kept.get("stream_options") is not None and kept.get("stream") is not True:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    try:
        return model.model_validate(kept)
    except ValidationError as err:
        raise to_request_error(err, model.model_fields) from err


def _bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    pairs: list[tuple[int, float]] = []
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise RequestError(
                f"logit_bias keys must be token ids in decimal, got {key[:40]!r}", param="logit_bias"
            )
        pairs.append((int(key), value))
    return tuple(pairs)
