"""What a caller asked for, validated once, then never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real
from operator import index
from typing import Any, cast

from headrace.base.errors import RequestError
from headrace.base.grammar import PARAM, Grammar
from headrace.base.ids import AdapterId, RequestId
from headrace.base.tasks import NO_SPECULATION, BeamSearch, Pooling, Speculation
from headrace.base.terms import Terms

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_CHOICES = 128
MAX_ID_LIST = 1024

_REALS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_WHOLES = ("top_k", "min_tokens", "n")
_WHOLES_OR_NONE = ("seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens")
_TEXTS = ("stop", "bad_words")
_LISTS = ("logit_bias", "allowed_token_ids", "bad_words_ids", "stop_token_ids")

_NOT_WITH_BEAMS = (
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "bad_words_ids",
    "stop",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "structured",
)


class FinishReason(Enum):
    """Why a sequence ended; the value is what the API reports."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to draw tokens. Names and meanings are vLLM's; the order of operations is `compute/sampling`'s.

    Any sequence is taken where a tuple is declared, one string where strings are, a mapping for `logit_bias`,
    and numbers of other libraries; they are stored as declared.

    Raises:
        RequestError: a value has a wrong type or is out of range; `param` names it.
    """

    temperature: float = 1.0
    """0 takes the most likely token; else logits are divided by it. Range 0 to 100."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach this sum; in (0, 1]."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one; in [0, 1]."""
    repetition_penalty: float = 1.0
    """Divides positive logits (multiplies negative ones) of tokens in prompt or output; in [0.01, 10]."""
    presence_penalty: float = 0.0
    """Subtracted from logits of tokens seen in the output; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the output; in [-2, 2]."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, value in [-100, 100]) added to logits."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens may be drawn."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not appear in the output; words are tokenized at intake."""
    bad_words: tuple[str, ...] = ()
    """Words that must not appear in the output."""
    seed: int | None = None
    """Same seed, same text; None draws one (returned with the answer). 0 <= seed < 2**63."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; not part of it unless `include_stop_str_in_output`."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, besides the model's end tokens."""
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    """No end token, stop token or stop string counts before this many tokens."""
    max_tokens: int | None = 16
    """Most tokens to draw; None: up to the context limit."""
    ignore_eos: bool = False
    n: int = 1
    """Number of choices."""
    logprobs: int | None = None
    """None: no log-probabilities; k: of the drawn token and the k most likely (0 to 20). Raw model values."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    truncate_prompt_tokens: int | None = None
    """Keep only the last k tokens of the prompt; -1: as many as leave room for `max_tokens`; None: all."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    structured: Grammar | None = None
    """What the answer must look like, from its first token on; the end tokens come when it is complete."""
    beams: BeamSearch | None = None
    """Find the most likely answers instead of drawing; `n` of them, best first. Nothing else shapes them."""
    speculate: str | None = None
    """How to draft this answer, as in the setting `speculate`; None: as the engine does. Changes no token."""

    def __post_init__(self) -> None:
        """Bring values into the declared types, then check every range."""
        self._settle_types()
        _in("temperature", self.temperature, 0.0, 100.0)
        if self.top_k < -1:
            raise RequestError(
                f"top_k must be -1 (off), 0 (off) or positive, got {self.top_k}", param="top_k"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {self.top_p}", param="top_p")
        _in("min_p", self.min_p, 0.0, 1.0)
        _in("repetition_penalty", self.repetition_penalty, 0.01, 10.0)  # below, logits would overflow
        _in("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self._check_lists()
        self._check_counts()
        if self.structured is not None:
            self._check_structured()
        if self.speculate is not None:
            Speculation.parse(_text("speculate", self.speculate))
        if self.beams is not None:
            self._check_beams(self.beams)

    def _settle_types(self) -> None:
        forms = dict.fromkeys(_REALS, _real) | dict.fromkeys(_WHOLES, _whole)
        forms |= dict.fromkeys(_WHOLES_OR_NONE, _whole_or_none) | dict.fromkeys(_TEXTS, _texts)
        forms |= dict.fromkeys(_LISTS, _listed)
        for name, form in forms.items():
            given = getattr(self, name)
            settled = form(name, given)
            if settled is not given:
                object.__setattr__(self, name, settled)

    def _check_lists(self) -> None:
        if len(self.logit_bias) > MAX_ID_LIST:
            raise RequestError(
                f"logit_bias has {len(self.logit_bias)} entries, limit {MAX_ID_LIST}", param="logit_bias"
            )
        for token_id, value in self.logit_bias:
            if token_id < 0:
                raise RequestError(
                    f"logit_bias token id must not be negative, got {token_id}", param="logit_bias"
                )
            _in("logit_bias", value, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError(
                "allowed_token_ids must not be empty; leave it out to allow all", param="allowed_token_ids"
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop has {len(self.stop)} strings, limit {MAX_STOP_STRINGS}", param="stop")
        for text in self.stop:
            if not text or len(text) > MAX_STOP_CHARS:
                raise RequestError(
                    f"a stop string must have 1 to {MAX_STOP_CHARS} characters, got {len(text)}", param="stop"
                )
        for name in ("stop_token_ids", "bad_words", "bad_words_ids"):
            if len(getattr(self, name)) > MAX_ID_LIST:
                raise RequestError(
                    f"{name} has {len(getattr(self, name))} entries, limit {MAX_ID_LIST}", param=name
                )

    def _check_counts(self) -> None:
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise RequestError(f"seed must be in [0, 2**63), got {self.seed}", param="seed")
        if not 1 <= self.n <= MAX_CHOICES:
            raise RequestError(f"n must be in [1, {MAX_CHOICES}], got {self.n}", param="n")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}", param="max_tokens")
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise RequestError(
                f"min_tokens must be in [0, max_tokens={self.max_tokens}], got {self.min_tokens}",
                param="min_tokens",
            )
        kept = self.truncate_prompt_tokens
        if kept is not None and kept != -1 and kept < 1:
            raise RequestError(
                f"truncate_prompt_tokens must be -1 or at least 1, got {kept}", param="truncate_prompt_tokens"
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                raise RequestError(f"{name} must be in [0, {MAX_LOGPROBS}], got {value}", param=name)

    def _check_beams(self, beams: BeamSearch) -> None:
        """A search ranks by raw log-probabilities: refuse what would change or report other ones."""
        if self.n > beams.width:
            raise RequestError(
                f"n must not exceed the width of the beam search, {beams.width}, got {self.n}", param="n"
            )
        if self.temperature not in {0.0, 1.0}:
            raise RequestError(
                "temperature does not apply to a beam search; leave it out", param="temperature"
            )
        plain = SamplingParams()
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != getattr(plain, name):
                raise RequestError(f"{name} does not apply to a beam search; leave it out", param=name)

    def _check_structured(self) -> None:
        if not isinstance(self.structured, Grammar):  # pyright: ignore
            raise RequestError(
                f"structured must be a Grammar, such as Grammar.json(schema), got {self.structured!r:.80}",
                param=PARAM,
            )
        if self.ignore_eos:
            raise RequestError(
                "ignore_eos and structured output exclude each other: nothing may follow a complete answer",
                param="ignore_eos",
            )


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} must be a number, got {value!r:.80}", param=name)
    return value if isinstance(value, int | float) else float(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError(f"{name} must be a whole number, got {value!r:.80}", param=name)
    return index(value)


def _whole_or_none(name: str, value: Any) -> int | None:
    return None if value is None else _whole(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text, got {value!r:.80}", param=name)
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = _tuple(name, (value,) if isinstance(value, str) else value)
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(f"{name} must hold texts, got {text!r:.80}", param=name)
    return texts


def _listed(name: str, value: Any) -> tuple[Any, ...] | None:
    """Token ids, pairs (token id, value), or words as tuples of token ids."""
    if value is None and name == "allowed_token_ids":
        return None
    if name == "logit_bias":
        pairs = _tuple(name, tuple(value.items()) if isinstance(value, Mapping) else value)  # pyright: ignore
        return tuple((_whole(name, i), _real(name, bias)) for i, bias in (_pair(p) for p in pairs))
    if name == "bad_words_ids":
        return tuple(tuple(_whole(name, i) for i in _tuple(name, word)) for word in _tuple(name, value))
    return tuple(_whole(name, i) for i in _tuple(name, value))


def _pair(value: Any) -> tuple[Any, ...]:
    pair = _tuple("logit_bias", value)
    if len(pair) != 2:
        raise RequestError(f"logit_bias holds pairs (token id, value), got {value!r:.80}", param="logit_bias")
    return pair


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        return cast("tuple[Any, ...]", value)
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise RequestError(f"{name} must be a list, got {value!r:.80}", param=name)
    return tuple(value)


def _in(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN fails too
        raise RequestError(f"{name} must be in [{low:g}, {high:g}], got {value}", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence for the engine: one choice of one API request, in token ids.

    `sampling.seed` is set, `sampling.max_tokens` is set (capped by the context limit) and `sampling.n` is 1:
    intake resolves them and fans the choices out.
    """

    request_id: RequestId
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_ids: frozenset[int] = frozenset()
    """Ids that end the sequence (end tokens unless ignore_eos, and stop_token_ids).

    min_tokens bans them before.
    """
    leader: RequestId | None = None
    """The first choice of the same API request; its computed prompt blocks are shared (copy-on-write)."""
    adapter: AdapterId | None = None
    salt: str = ""
    """Requests with different salts never share cached blocks."""
    kv_domain: str = ""
    """What else the KV depends on besides the tokens (the length class of dynamic RoPE kinds).

    Part of the block keys.
    """
    priority: int = 0
    """Lower runs first, as in vLLM."""
    task: Pooling | BeamSearch | None = None
    """None: an answer, token by token. A pooling: the prompt's pooled hidden states, and no token is drawn
    (`max_tokens` counts as 0). A beam search: the most likely answers, all at the end."""
    arrival_s: float = 0.0
    """Monotonic time of arrival, for timelines and queue limits."""
    terms: Terms = field(default_factory=Terms)
    """Whom it counts for and until when it is wanted; all choices of one API request have the same."""

    def drafts_within(self, offered: Speculation) -> Speculation:
        """How it is drafted for where the engine offers this: not unless it is an answer without a grammar.

        Masks along drafts need copies of the matcher, which share its limits: drafts could end answers.

        Raises:
            RequestError: it asks for what is not offered.
        """
        if self.task is not None or self.sampling.structured is not None:
            return NO_SPECULATION
        asked = self.sampling.speculate
        return offered if asked is None else Speculation.parse(asked).within(offered)
