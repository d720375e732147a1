"""Drafts one after the other: run a program, draw, put what was drawn behind the sequence, run again.

    tokens      a b c d | x y z            pass 1    c d   gives x      (the program had a b)
    positions   0 1 2 3   4 5 6            pass 2    x     gives y
                          drafts           pass 3    y     gives z      (z itself is not computed)

All rows go through a pass together. A draft is drawn as the target would draw its token: the same seed,
position, temperature, penalties and bans, and with them the same noise. That is what makes sampled drafts
agree.
"""

from collections.abc import Sequence

import numpy as np

from headrace.compute.ops.api import F32, Backend, KVPool, Program
from headrace.compute.runner.inputs import Inputs
from headrace.compute.runner.passes import Piece
from headrace.compute.runner.state import DeviceState
from headrace.compute.sampling.batch import Draw
from headrace.compute.spec.draw import over_vocabulary
from headrace.compute.spec.kit import DraftKit
from headrace.compute.spec.proposer import Ask


class Chain:
    """Drafts of a program.

    Args:
        kit: what drafters work with.
        program: gives logits [S, V'] of the wanted tokens; V' may differ from the target's V.
        pool: where its keys and values lie.
        rows: tokens that the program knows; it reads others as its last.
    """

    def __init__(self, kit: DraftKit, program: Program, pool: KVPool, rows: int) -> None:
        self._state: DeviceState = kit.state
        self._backend: Backend = kit.backend
        self._program = program
        self._vocab = kit.target.spec.vocab_size
        self._rows = rows
        self._inputs = Inputs(kit.state, pool, kit.limits.max_tokens)
        self.num_passes = 0
        """Of the program, since start."""
        self.num_keys = 0
        """Keys that their rows saw, added up."""

    def take_in(self, spans: Sequence[tuple[int, int, int]]) -> None:
        """Compute (slot, start, count) tokens without drawing; all together at most `kit.limits`."""
        if spans:
            self._run([Piece(i, *span, 0, False) for i, span in enumerate(spans)])

    def propose(self, asks: Sequence[Ask], starts: Sequence[int]) -> list[list[int]]:
        """Drafts of each ask.

        Args:
            asks: whose blocks reach as far as their drafts.
            starts: tokens of each that the program computed before; at least one is left.
        """
        state = self._state
        ends = [int(state.num_tokens[ask.slot]) for ask in asks]
        drafts: list[list[int]] = [[] for _ in asks]
        todo = [(i, starts[i], ends[i] - starts[i]) for i in range(len(asks))]
        while todo:
            pieces = [Piece(n, asks[i].slot, at, count, 1, False) for n, (i, at, count) in enumerate(todo)]
            logits = self._run(pieces)
            draws = [Draw(asks[i].slot, tuple(drafts[i])) for i, _, _ in todo]
            drawn = self._draw(logits, draws, [ends[i] + len(drafts[i]) for i, _, _ in todo])
            left: list[tuple[int, int, int]] = []
            for (i, at, count), token in zip(todo, drawn, strict=True):
                if token is None:
                    continue
                drafts[i].append(token)
                state.draft(asks[i].slot, drafts[i])
                if len(drafts[i]) < asks[i].most:
                    left.append((i, at + count, 1))
            todo = left
        return drafts

    def _run(self, pieces: list[Piece]) -> F32:
        context = self._inputs.gather(pieces)
        if self._rows < self._vocab:
            np.minimum(context.token_ids, self._rows - 1, out=context.token_ids)
        self.num_passes += 1
        self.num_keys += int(context.key_len.sum())
        return self._program.run(context)

    def _draw(self, logits: F32, draws: list[Draw], positions: list[int]) -> list[int | None]:
        """One token per row; None where nothing can be drawn."""
        slots = np.array([draw.slot for draw in draws], np.intp)
        batch = self._state.sampling.batch(draws, slots, np.array(positions, np.int32))
        batch.num_logprobs = np.full(len(draws), -1, np.int32)
        if logits.shape[1] == self._vocab:
            batch.maxima = self._program.maxima
        sampled = self._backend.sample(_fit(logits, self._vocab), batch)
        pairs = zip(sampled.tokens.tolist(), sampled.errors.tolist(), strict=True)
        return [None if error else token for token, error in pairs]


def _fit(logits: F32, vocab: int) -> F32:
    """Logits over the target's vocabulary: what is more was padding, what is less is never drawn."""
    width = logits.shape[1]
    if width == vocab:
        return logits
    if width > vocab:
        return np.ascontiguousarray(logits[:, :vocab])
    return over_vocabulary(logits, vocab, slice(width))
