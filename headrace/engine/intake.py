"""From what a caller asked to sequences for the engine: token ids, limits, seeds, choices.

The only place where requests are checked against the model: ids against the vocabulary, lengths against the
context limit. Nothing is cut silently: a prompt that leaves no room for a token is refused with numbers;
`max_tokens` above the room is lowered to it, and such an answer ends with `length`.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from headrace.base.clock import now_s
from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.grammar import PARAM
from headrace.base.ids import RequestId, engine_id
from headrace.base.request import MAX_ID_LIST, Request, SamplingParams
from headrace.base.tasks import NO_SPECULATION, BeamSearch, Pooling, Speculation
from headrace.base.terms import Terms, caller_terms
from headrace.compute.sampling.seeds import choice_seed, request_seed
from headrace.compute.spec.proposer import methods
from headrace.engine.chat.prompt import DEFAULTS, ChatOptions, ChatPrompt, Messages, chat_prompt
from headrace.engine.text import Text
from headrace.host.text.parts.splitter import SplitPlan
from headrace.host.text.vocab.vocabulary import TooManyTokensError

Prompt = str | Sequence[int]
MAX_BAD_WORD_TOKENS = 64
MAX_BAD_WORD_CHARS = 256
MAX_PRIORITY = 2**31 - 1
MAX_REQUEST_ID_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One API request, as it came."""

    prompt: Prompt
    params: SamplingParams
    request_id: str | None = None
    salt: str = ""
    priority: int = 0
    task: Pooling | BeamSearch | None = None
    terms: Terms = field(default_factory=caller_terms)
    plan: SplitPlan | None = None
    """How the answers are split; None: they are not."""
    begun_s: float = 0.0
    """Monotonic time at which work on it began, for its timeline; 0.0: with `prepare`."""
    part_of: str = ""
    """Id of the answer to several requests of which it is one; empty: it is an answer by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One API request, ready for the engine; `requests` are its choices, leader first."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    requests: tuple[Request, ...]
    plan: SplitPlan | None = None
    begun_s: float = 0.0
    part_of: str = ""

    @property
    def tenant(self) -> str:
        """Whom it counts for."""
        return self.requests[0].terms.tenant.name

    @property
    def leader_id(self) -> RequestId:
        """What the engine calls its first choice; no other request has it, of whatever tenant."""
        return self.requests[0].request_id


class Intake:
    """Prepares requests. Thread-safe.

    Args:
        text: tokenizer and end tokens.
        vocab_size: token ids are below it.
        max_model_len: most tokens of prompt and output.
        engine_seed: what the seeds of requests without one are derived from.
        speculation: what the engine was started with.
    """

    def __init__(
        self,
        text: Text,
        vocab_size: int,
        max_model_len: int,
        engine_seed: int,
        speculation: Speculation = NO_SPECULATION,
    ) -> None:
        self._text = text
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._engine_seed = engine_seed
        self._speculation = speculation
        self._counter = count()

    def prepare(self, ask: Ask) -> Prepared:
        """Check and complete a request.

        Raises:
            RequestError: something in it is invalid; `param` names the field.
            ContextLengthError: the prompt leaves no room for an answer.
        """
        number, begun_s = next(self._counter), ask.begun_s or now_s()
        _check_task(ask)
        least = 0 if isinstance(ask.task, Pooling) else 1
        prompt_ids = self.prompt_ids(ask.prompt, least, self._kept(ask.params))
        params = self._complete(ask.params, len(prompt_ids))
        if not -MAX_PRIORITY <= ask.priority <= MAX_PRIORITY:
            raise RequestError(
                f"priority must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}], got {ask.priority}", param="priority"
            )
        seed = params.seed if params.seed is not None else request_seed(self._engine_seed, number)
        request_id = ask.request_id or f"req-{number}"
        _check_name(request_id)
        _check_writable("cache_salt", ask.salt)
        _check_writable("tenant", ask.terms.tenant.name)
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= self._text.end_ids
        _check_drawable(params, ends)
        leader = engine_id(ask.terms.tenant.name, request_id)
        arrival_s, task = now_s(), ask.task or params.beams
        sampling = params if params.beams is None else replace(params, beams=None, n=1, temperature=0.0)
        requests = tuple(
            Request(
                request_id=RequestId(f"{leader}.{i}") if i else leader,
                prompt_ids=prompt_ids,
                sampling=replace(
                    sampling,
                    n=1,
                    seed=choice_seed(seed, i),
                    prompt_logprobs=None if i else params.prompt_logprobs,
                ),
                end_ids=ends,
                leader=leader if i else None,
                salt=ask.salt,
                priority=ask.priority,
                arrival_s=arrival_s,
                task=task,
                terms=ask.terms,
            )
            for i in range(sampling.n)  # a search is one request, whatever it finds
        )
        return Prepared(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=params,
            seed=seed,
            requests=requests,
            plan=ask.plan,
            begun_s=begun_s,
            part_of=ask.part_of,
        )

    def chat(self, messages: Messages, options: ChatOptions = DEFAULTS) -> ChatPrompt:
        """The prompt of a conversation, and how answers to it are split.

        Raises:
            RequestError: the template refuses.
            ContextLengthError: the texts alone are too long; found before the template and tokenizer run,
                or, where it is to be answered whole, before their tokens are taken over.
        """
        self._check_size(sum(_num_bytes(message.get("content")) for message in messages))
        with self._refusing(1):
            return chat_prompt(
                self._text, messages, options, self._max_model_len if options.must_fit else None
            )

    def prompt_ids(self, prompt: Prompt, least: int = 1, kept: int | None = None) -> tuple[int, ...]:
        """Token ids of a prompt, checked against vocabulary and context limit.

        Args:
            prompt: text or token ids.
            least: tokens that must be left for an answer.
            kept: most tokens, the last ones; the rest is left out. None: nothing is left out.

        Raises:
            RequestError: empty, or ids outside the vocabulary.
            ContextLengthError: no room for an answer.
        """
        if isinstance(prompt, str):
            self._check_size(_num_bytes(prompt), least)
            with self._refusing(least):
                ids = self._text.encode(prompt, self._max_model_len if kept is None else None)
            ids = self._check_ids("prompt", ids)  # a tokenizer may know more than the head has rows
            ids = ids if kept is None else ids[-kept:]
        else:
            prompt = prompt if kept is None else prompt[-kept:]
            if len(prompt) > self._max_model_len - least:
                raise self._too_long(str(len(prompt)), least)
            ids = self._check_ids("prompt", tuple(prompt))
        if not ids:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        if len(ids) > self._max_model_len - least:
            raise self._too_long(str(len(ids)), least)
        return ids

    @contextmanager
    def _refusing(self, least: int) -> Generator[None]:
        """Refuse a text that tokenizing gives up as too long; `least` tokens must be left for an answer."""
        try:
            yield
        except TooManyTokensError as found:
            raise self._too_long(f"at least {found.count}", least) from None

    def _kept(self, params: SamplingParams) -> int | None:
        kept = params.truncate_prompt_tokens
        if kept != -1:
            return kept
        room = self._max_model_len - (params.max_tokens or 1)
        if room < 1:
            raise ContextLengthError(
                f"truncate_prompt_tokens=-1 leaves room for max_tokens={params.max_tokens}, and the context "
                f"limit is {self._max_model_len}: no token of the prompt could stay, lower max_tokens",
                param="max_tokens",
            )
        return room

    def _check_size(self, size: int, least: int = 1) -> None:
        """Cheap bound before the work: a text of `size` bytes has at least this many tokens."""
        most = self._max_model_len - least
        if size > most and size // self._text.longest_token > most:
            raise self._too_long(f"at least {size // self._text.longest_token}", least)

    def _too_long(self, tokens: str, least: int) -> ContextLengthError:
        left = ", of which at least one must be left for the answer" if least else ""
        return ContextLengthError(
            f"the prompt has {tokens} tokens; the context limit is {self._max_model_len} tokens{left}: "
            f"shorten the prompt to {self._max_model_len - least} tokens, or raise --max-model-len",
            param="prompt",
        )

    def _complete(self, params: SamplingParams, num_prompt: int) -> SamplingParams:
        """Parameters with ids checked, words tokenized and `max_tokens` resolved."""
        room = max(1, self._max_model_len - num_prompt)  # a prompt to be pooled leaves none and needs none
        if params.min_tokens > room:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens and min_tokens asks for {params.min_tokens} more; the "
                f"context limit is {self._max_model_len}",
                param="min_tokens",
            )
        self._check_ids("logit_bias", tuple(i for i, _ in params.logit_bias))
        self._check_ids("stop_token_ids", params.stop_token_ids)
        if params.allowed_token_ids is not None:
            self._check_ids("allowed_token_ids", params.allowed_token_ids)
        if params.speculate is not None:
            _check_method(Speculation.parse(params.speculate).within(self._speculation))
        words = self._bad_words(params)
        return replace(
            params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            bad_words=(),
            bad_words_ids=words,
        )

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """All banned sequences: those given as ids, and each word's spellings."""
        for word in params.bad_words:
            if not 1 <= len(word) <= MAX_BAD_WORD_CHARS:  # before the work of tokenizing it
                raise RequestError(
                    f"a bad word must have 1 to {MAX_BAD_WORD_CHARS} characters, got {len(word)}",
                    param="bad_words",
                )
        words = (
            *params.bad_words_ids,
            *(ids for w in params.bad_words for ids in self._text.encode_words(w)),
        )
        if len(words) > MAX_ID_LIST:
            raise RequestError(
                f"bad_words make {len(words)} token sequences (a word has up to two spellings), limit "
                f"{MAX_ID_LIST}: send fewer words",
                param="bad_words",
            )
        for word in words:
            self._check_bad_word(word)
        return words

    def _check_bad_word(self, word: tuple[int, ...]) -> None:
        if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"a bad word must have 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(word)}", param="bad_words"
            )
        self._check_ids("bad_words", word)

    def _check_ids(self, name: str, ids: tuple[int, ...]) -> tuple[int, ...]:
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int):  # type: ignore[redundant-expr]
                raise RequestError(f"{name}: a token id is a whole number, got {i!r}", param=name)
            if not 0 <= i < self._vocab_size:
                raise RequestError(f"{name}: token id {i} is not in [0, {self._vocab_size})", param=name)
        return ids


def _num_bytes(content: object) -> int:
    """UTF-8 bytes of a text, or of a message's content: a text, or parts with a `text`."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "replace"))
    if isinstance(content, (list, tuple)):
        parts = cast("Sequence[object]", content)
        return sum(
            _num_bytes(cast("Mapping[str, Any]", p).get("text")) for p in parts if isinstance(p, Mapping)
        )
    return 0


def _check_name(request_id: str) -> None:
    """Refuse names that are long, that UTF-8 cannot write, or with characters of the engine's own names."""
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise RequestError(
            f"request_id has {len(request_id)} characters, limit {MAX_REQUEST_ID_CHARS}", param="request_id"
        )
    if any(char < " " for char in request_id):
        raise RequestError(
            f"request_id has a control character: {request_id!r}; leave it out", param="request_id"
        )
    _check_writable("request_id", request_id)


def _check_writable(name: str, text: str) -> None:
    """Refuse what would fail only where it is hashed or packed, in the thread that serves all."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} has half of a surrogate pair, which UTF-8 cannot write: {text[:80]!r}; leave it out",
            param=name,
        ) from error


def _check_method(wish: Speculation) -> None:
    """Refuse a method of drafting that there is not."""
    known = methods()
    for name in wish.names:
        if name not in known:
            raise RequestError(
                f"speculate: unknown method {name!r:.80}; known: {', '.join(known)}", param="speculate"
            )


def _check_task(ask: Ask) -> None:
    """Refuse a grammar where no answer is drawn token by token."""
    if ask.task is not None and ask.params.structured is not None:
        what = "embeddings have" if isinstance(ask.task, Pooling) else "a beam search has"
        raise RequestError(f"{what} no structured output; leave one of them out", param=PARAM)


def _check_drawable(params: SamplingParams, ends: frozenset[int]) -> None:
    """Refuse what can never draw a first token: every allowed token is banned."""
    if params.allowed_token_ids is None:
        return
    banned = {word[0] for word in params.bad_words_ids if len(word) == 1}
    if params.min_tokens:
        banned |= ends
    if banned.issuperset(params.allowed_token_ids):
        raise RequestError(
            "allowed_token_ids leaves no token to draw: bad_words or min_tokens (holds end and stop tokens "
            "back) ban all of them; allow one more token",
            param="allowed_token_ids",
        )
