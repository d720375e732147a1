"""From a proposer's logits to drafts: drawn as the target draws, with the same noise.

A draft counts only when it is the token that the target draws there. So the best draft of a sampled row is
not the likeliest token but `argmax(processed logits + noise)` of that position, as if the logits were the
target's: where they are alike, so are the tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.compute.ops.api import F32, I32, Backend
from headrace.compute.sampling.batch import Draw, SamplingState

UNKNOWN = np.float32(-1e9)
"""Logit of tokens that a smaller vocabulary lacks; infinite ones would count as broken."""


class Place(NamedTuple):
    """Where a draft is drawn."""

    slot: int
    drafts: Sequence[int]
    """Drafts before it."""
    num_known: int
    """Tokens of the sequence before those."""


class DraftDraws:
    """Draws drafts.

    Args:
        sampling: the slots' parameters.
        backend: draws.
        vocab: the target's number of tokens.
        tokens: the token of each column of the logits; None: columns are tokens.
    """

    def __init__(
        self, sampling: SamplingState, backend: Backend, vocab: int, tokens: I32 | None = None
    ) -> None:
        self._sampling = sampling
        self._backend = backend
        self._tokens = tokens
        self._vocab = vocab

    def draw(self, places: Sequence[Place], logits: F32) -> list[int | None]:
        """One draft for each place from its row of `logits` [S, N], which may be overwritten.

        None where nothing can be drawn: the logits are broken, or all tokens are banned.
        """
        slots = np.array([place.slot for place in places], np.intp)
        if self._sampling.is_greedy(slots):
            best = logits.argmax(axis=1)  # that of a NaN, where there is one
            is_sound = np.isfinite(logits[np.arange(len(best)), best])
            best = best if self._tokens is None else self._tokens[best]
            return _sound(best, is_sound)
        if self._tokens is not None:
            logits = over_vocabulary(logits, self._vocab, self._tokens)
        draws = [Draw(place.slot, tuple(place.drafts)) for place in places]
        positions = np.array([place.num_known + len(place.drafts) for place in places], np.int32)
        batch = self._sampling.batch(draws, slots, positions)
        batch.num_logprobs = np.full(len(places), -1, np.int32)
        sampled = self._backend.sample(logits, batch)
        return _sound(sampled.tokens, sampled.errors == 0)


def over_vocabulary(logits: F32, vocab: int, tokens: I32 | slice) -> F32:
    """Logits [S, vocab] from those [S, N] of some tokens."""
    whole = np.full((len(logits), vocab), UNKNOWN, np.float32)
    whole[:, tokens] = logits
    return whole


def _sound(tokens: NDArray[Any], is_sound: NDArray[np.bool_]) -> list[int | None]:
    """Tokens; None for those that are not sound."""
    return [
        token if is_good else None for token, is_good in zip(tokens.tolist(), is_sound.tolist(), strict=True)
    ]
