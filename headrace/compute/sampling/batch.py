"""The sampling arrays of one step, gathered from the slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.base.request import Request
from headrace.base.step import StepMasks
from headrace.base.tasks import BeamSearch
from headrace.compute.ops.api import F32, I32, AllowedMask, SampleBatch, SeenTokens, TokenBias
from headrace.compute.sampling.sampler import GREEDY_BELOW
from headrace.compute.sampling.state import SlotExtras, needs_extras


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw: the slot, and the drafts assumed before it."""

    slot: int
    drafts: tuple[int, ...] = ()


class SamplingState:
    """Sampling parameters and extras of every slot.

    Args:
        num_slots: slots of the runner.
        vocab: number of tokens.
    """

    def __init__(self, num_slots: int, vocab: int) -> None:
        self._vocab = vocab
        self._seeds = np.zeros(num_slots, np.uint64)
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._penalties = np.zeros((num_slots, 3), np.float32)
        self._num_logprobs = np.full(num_slots, -1, np.int32)
        self._extras: dict[int, SlotExtras] = {}
        self._masks: dict[int, NDArray[np.uint32]] = {}
        """By slot."""

    def begin(self, slot: int, request: Request, output: Sequence[int]) -> None:
        """A sequence enters a slot with its output so far.

        Raises:
            ValueError: the request has no seed.
        """
        sampling = request.sampling
        if sampling.seed is None:
            raise ValueError(f"request {request.request_id!r} has no seed")
        self._seeds[slot] = sampling.seed
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = min(max(sampling.top_k, 0), self._vocab)  # above V it means off, as V does
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._penalties[slot] = (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        )
        self._num_logprobs[slot] = -1 if sampling.logprobs is None else sampling.logprobs
        if isinstance(request.task, BeamSearch):
            self._num_logprobs[slot] = min(request.task.num_offers, self._vocab)
        self._extras.pop(slot, None)
        if needs_extras(request):
            self._extras[slot] = SlotExtras(request, output, self._vocab)

    def end(self, slot: int) -> None:
        """Forget a slot."""
        self._extras.pop(slot, None)
        self._num_logprobs[slot] = -1

    def add(self, slot: int, tokens: Sequence[int]) -> None:
        """The output of a slot grew."""
        extras = self._extras.get(slot)
        if extras is not None:
            for token in tokens:
                extras.add(token)

    def set_masks(self, masks: StepMasks | None) -> None:
        """The masks of this step; waits until they are made."""
        self._masks = {}
        if masks is not None:
            rows = np.frombuffer(masks.take(), np.uint32).reshape(len(masks.slots), -1)
            self._masks = {int(slot): row for slot, row in zip(masks.slots, rows, strict=True)}

    def num_logprobs(self, slot: int) -> int:
        """Top log-probabilities that the slot's request wants; -1: none at all."""
        return int(self._num_logprobs[slot])

    def is_plain(self, slots: NDArray[np.intp]) -> bool:
        """Whether these slots need neither log-probabilities nor anything of `SlotExtras`."""
        return bool((self._num_logprobs[slots] < 0).all()) and self._extras.keys().isdisjoint(slots.tolist())

    def is_greedy(self, slots: NDArray[np.intp]) -> bool:
        """Whether these slots draw the token with the largest logit, whatever came before."""
        is_cold = bool((self._temperature[slots] < GREEDY_BELOW).all())
        return is_cold and self._extras.keys().isdisjoint(slots.tolist())

    def plain_batch(self, slots: NDArray[np.intp], positions: I32) -> SampleBatch:
        """The arrays for one draw per slot, which are plain; `positions` is kept, not copied."""
        return SampleBatch(
            positions=positions,
            seeds=self._seeds[slots],
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            penalties=self._penalties[slots],
            num_logprobs=self._num_logprobs[slots],
        )

    def batch(self, draws: Sequence[Draw], slots: NDArray[np.intp], positions: I32) -> SampleBatch:
        """The arrays for S draws.

        Args:
            draws: what is drawn.
            slots: their slots [S].
            positions: absolute positions of the tokens to draw [S].
        """
        batch = self.plain_batch(slots, positions)
        if self._extras:
            extras = [self._extras.get(d.slot) for d in draws]
            batch.seen = _seen(draws, extras)
            batch.bias = _bias(draws, extras)
            batch.allowed = _allowed([self._mask(d, e) for d, e in zip(draws, extras, strict=True)])
        return batch

    def _mask(self, draw: Draw, extras: SlotExtras | None) -> NDArray[np.uint32] | None:
        """The tokens that may be drawn, by the request and by its grammar; None: all."""
        own = None if extras is None else extras.mask
        made = self._masks.get(draw.slot)
        if own is None or made is None:
            return made if own is None else own
        return own & made


def _seen(draws: Sequence[Draw], extras: Sequence[SlotExtras | None]) -> SeenTokens | None:
    if not any(e is not None and e.seen is not None for e in extras):
        return None
    parts = [
        e.seen.arrays(d.drafts) if e is not None and e.seen is not None else _NO_COUNTS
        for d, e in zip(draws, extras, strict=True)
    ]
    return SeenTokens(
        start=_starts([len(p[0]) for p in parts]),
        ids=np.concatenate([p[0] for p in parts]),
        counts=np.concatenate([p[1] for p in parts]),
    )


def _bias(draws: Sequence[Draw], extras: Sequence[SlotExtras | None]) -> TokenBias | None:
    parts = [e.bias(d.drafts) if e is not None else _NO_BIAS for d, e in zip(draws, extras, strict=True)]
    if not any(len(p[0]) for p in parts):
        return None
    return TokenBias(
        start=_starts([len(p[0]) for p in parts]),
        ids=np.concatenate([p[0] for p in parts]),
        values=np.concatenate([p[1] for p in parts]),
    )


def _allowed(masks: Sequence[NDArray[np.uint32] | None]) -> AllowedMask | None:
    rows = np.full(len(masks), -1, np.int32)
    given = [m for m in masks if m is not None]
    if not given:
        return None
    rows[[i for i, m in enumerate(masks) if m is not None]] = np.arange(len(given), dtype=np.int32)
    return AllowedMask(row=rows, masks=np.stack(given))


def _starts(lengths: Sequence[int]) -> I32:
    out = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=out[1:])
    return out


_NO_COUNTS: tuple[I32, I32] = (np.empty(0, np.int32), np.empty(0, np.int32))
_NO_BIAS: tuple[I32, F32] = (np.empty(0, np.int32), np.empty(0, np.float32))
