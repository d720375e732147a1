"""What a slot must remember to draw its tokens: parameters, tokens seen, bans, mask.

Most requests use neither penalties nor bans nor masks: their slot has no `SlotExtras`, and a step copies
plain arrays.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.base.request import Request, SamplingParams
from headrace.compute.ops.api import F32, I32

BAN = np.float32(-np.inf)


class SeenCounts:
    """Distinct tokens of prompt and output with their number of occurrences in the output."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt))
        self._place = {token: i for i, token in enumerate(distinct)}
        self._size = len(distinct)
        self._ids = np.zeros(max(64, 2 * self._size), np.int32)
        self._counts = np.zeros_like(self._ids)
        self._ids[: self._size] = distinct
        for token in output:
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more output token."""
        place = self._place.get(token)
        if place is None:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            place = self._place[token] = self._size
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1

    def arrays(self, more: Sequence[int] = ()) -> tuple[I32, I32]:
        """Ids and counts, with `more` output tokens counted that are not (yet) part of the output."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        if not more:
            return ids, counts
        counts = counts.copy()
        fresh: dict[int, int] = {}
        for token in more:
            place = self._place.get(token)
            if place is None:
                fresh[token] = fresh.get(token, 0) + 1
            else:
                counts[place] += 1
        extra = np.array(list(fresh), np.int32), np.array(list(fresh.values()), np.int32)
        return np.concatenate([ids, extra[0]]), np.concatenate([counts, extra[1]])


class SlotExtras:
    """Penalties, biases, bans and mask of one slot.

    Args:
        request: the sequence.
        output: its output so far (a preempted sequence comes back with its output).
        vocab: number of tokens.
    """

    def __init__(self, request: Request, output: Sequence[int], vocab: int) -> None:
        sampling = request.sampling
        self._output = list(output)
        self._min_tokens = sampling.min_tokens
        self._end_ids = np.array(sorted(i for i in request.end_ids if i < vocab), np.int32)
        self._bad_words = sampling.bad_words_ids
        self._bias_ids = np.array([i for i, _ in sampling.logit_bias], np.int32)
        self._bias_values = np.array([v for _, v in sampling.logit_bias], np.float32)
        self.seen = SeenCounts(request.prompt_ids, output) if has_penalties(sampling) else None
        self.mask = _mask(sampling.allowed_token_ids, vocab)

    def add(self, token: int) -> None:
        """The output grew by one token."""
        self._output.append(token)
        if self.seen is not None:
            self.seen.add(token)

    def bias(self, drafts: Sequence[int]) -> tuple[I32, F32]:
        """Ids and values to add to the logits of the token after the output and `drafts`."""
        banned = self._banned(drafts)
        if not len(banned):
            return self._bias_ids, self._bias_values
        bans = np.full(len(banned), BAN, np.float32)
        return np.concatenate([self._bias_ids, banned]), np.concatenate([self._bias_values, bans])

    def _banned(self, drafts: Sequence[int]) -> I32:
        length = len(self._output) + len(drafts)
        words = self._bad_word_ends(drafts) if self._bad_words else []
        ends = self._end_ids if length < self._min_tokens else self._end_ids[:0]
        return np.concatenate([ends, np.array(words, np.int32)]) if words else ends

    def _bad_word_ends(self, drafts: Sequence[int]) -> list[int]:
        longest = max(len(word) for word in self._bad_words)
        tail = (self._output[-longest:] if longest else []) + list(drafts)
        return [
            word[-1]
            for word in self._bad_words
            if len(word) == 1 or tuple(tail[1 - len(word) :]) == word[:-1]
        ]


def has_penalties(sampling: SamplingParams) -> bool:
    """Whether the tokens seen matter."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def needs_extras(request: Request) -> bool:
    """Whether the slot needs more than plain parameters."""
    sampling = request.sampling
    return bool(
        has_penalties(sampling)
        or sampling.logit_bias
        or sampling.bad_words_ids
        or sampling.allowed_token_ids is not None
        or sampling.structured is not None
        or (sampling.min_tokens and request.end_ids)
    )


def _mask(allowed: tuple[int, ...] | None, vocab: int) -> NDArray[np.uint32] | None:
    if allowed is None:
        return None
    bits = np.zeros((vocab + 31) // 32 * 32, np.uint8)
    bits[np.array(allowed, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
