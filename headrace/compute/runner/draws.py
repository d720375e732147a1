"""From logits to row results: drawing, checking drafts, reporting log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.base.step import TokenLogprobs
from headrace.compute.ops.api import F32, Backend, Sampled
from headrace.compute.runner.passes import Piece
from headrace.compute.runner.state import DeviceState
from headrace.compute.sampling.batch import Draw
from headrace.compute.sampling.sampler import NOTHING_LEFT, NUMERIC

NO_TOKEN = "no token may be drawn: masks, bans and biases exclude the whole vocabulary"
"""The request's own doing, not a fault of model or engine."""
ERRORS = {NUMERIC: "the model gave NaN or infinite logits for this request", NOTHING_LEFT: NO_TOKEN}


def error_text(code: int) -> str:
    """What a sampler's error means to the caller."""
    return ERRORS.get(code, f"sampling failed with code {code}")


@dataclass(slots=True)
class Outcome:
    """What a row has produced so far."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    error: str | None = None


class Draws:
    """Turns the logits of a pass into outcomes of rows."""

    def __init__(self, state: DeviceState, backend: Backend) -> None:
        self._state = state
        self._backend = backend

    def take(
        self,
        pieces: Sequence[Piece],
        logits: F32,
        outcomes: Sequence[Outcome],
        maxima: F32 | None = None,
    ) -> None:
        """Report and draw; `logits` [S, V] may be overwritten, `maxima` are those of `Program`.

        Outcomes are those of all rows of the step.
        """
        offsets = np.cumsum([0, *(p.logits for p in pieces)])
        for piece, first in zip(pieces, offsets[:-1].tolist(), strict=True):
            if piece.reports:
                self._report(piece, logits[first : first + piece.count], outcomes[piece.row])
        drawing = [(p, end - p.draws) for p, end in zip(pieces, offsets[1:].tolist(), strict=True) if p.draws]
        if drawing:
            self._draw(drawing, logits, outcomes, maxima)

    def _draw(
        self,
        drawing: list[tuple[Piece, int]],
        logits: F32,
        outcomes: Sequence[Outcome],
        maxima: F32 | None,
    ) -> None:
        draws: list[Draw] = []
        for piece, _ in drawing:
            drafts = self._drafts(piece)
            draws.extend(Draw(piece.slot, drafts[:i]) for i in range(piece.draws))
        sizes = np.array([p.draws for p, _ in drawing])
        within = np.arange(len(draws)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ends = np.array([p.start + p.count - p.draws + 1 for p, _ in drawing])
        rows = np.repeat([first for _, first in drawing], sizes) + within
        if len(rows) != logits.shape[0]:
            logits, maxima = logits[rows], None if maxima is None else maxima[rows]
        batch = self._state.sampling.batch(
            draws,
            np.array([d.slot for d in draws], np.intp),
            (np.repeat(ends, sizes) + within).astype(np.int32),
        )
        batch.maxima = maxima
        sampled = self._backend.sample(logits, batch)
        tokens, errors = sampled.tokens.tolist(), sampled.errors.tolist()
        first = 0
        for piece, _ in drawing:
            self._accept(piece, sampled, tokens, errors, first, outcomes[piece.row])
            first += piece.draws

    def _accept(
        self,
        piece: Piece,
        sampled: Sampled,
        tokens: list[int],
        errors: list[int],
        first: int,
        outcome: Outcome,
    ) -> None:
        """Keep drawn tokens as long as the drafts agree with them, and the one after."""
        drafts = self._drafts(piece)
        wants = self._state.sampling.num_logprobs(piece.slot)
        for i in range(piece.draws):
            at = first + i
            if errors[at]:
                if not i:  # else it is the error of the next row, which begins here
                    outcome.error = error_text(errors[at])
                return
            outcome.tokens.append(tokens[at])
            if wants >= 0:
                outcome.logprobs.append(entry(sampled, at, wants))
            if i < len(drafts) and drafts[i] != tokens[at]:
                return

    def _drafts(self, piece: Piece) -> tuple[int, ...]:
        if piece.draws == 1:
            return ()
        end = piece.start + piece.count
        return tuple(self._state.tokens[piece.slot, end - piece.draws + 1 : end].tolist())

    def _report(self, piece: Piece, logits: F32, outcome: Outcome) -> None:
        """Log-probabilities of prompt tokens start+1 .. start+count, as far as they lie in the prompt."""
        state, slot = self._state, piece.slot
        end = min(piece.start + piece.count + 1, int(state.num_prompt[slot]))
        targets = state.tokens[slot, piece.start + 1 : end]
        if not len(targets) or outcome.error is not None:
            return
        k = int(state.prompt_logprobs[slot])
        sampled = self._backend.logprobs(_rows(logits, len(targets)), np.ascontiguousarray(targets), k)
        whole = len(targets)
        if sampled.errors.any():  # those before stand, as they would had the prompt been cut there
            outcome.error = ERRORS[NUMERIC]
            whole = int(np.flatnonzero(sampled.errors)[0])
        outcome.prompt_logprobs.extend(entry(sampled, i, k) for i in range(whole))


def entry(sampled: Sampled, row: int, k: int) -> TokenLogprobs:
    """One reported token with its k most likely alternatives."""
    ids: NDArray[np.int32] = sampled.top_ids[row, :k]
    used = int((ids >= 0).sum())
    return TokenLogprobs(
        token_id=int(sampled.tokens[row]),
        logprob=float(sampled.logprobs[row]),
        rank=int(sampled.ranks[row]),
        top_ids=tuple(ids[:used].tolist()),
        top_logprobs=tuple(sampled.top_logprobs[row, :used].tolist()),
    )


def _rows(logits: F32, count: int) -> F32:
    return np.ascontiguousarray(logits[:count])
