"""The definition of sampling in numpy, row by row; backends are compared with it."""

import numpy as np
from numpy.typing import NDArray

from headrace.compute.ops.api import F32, SampleBatch, Sampled
from headrace.compute.sampling.logprobs import empty, fill, is_broken
from headrace.compute.sampling.noise import gumbel

GREEDY_BELOW = np.float32(1e-6)
NUMERIC, NOTHING_LEFT = 1, 2


def sample(logits: F32, batch: SampleBatch) -> Sampled:
    """Draw one token per row of `logits` [S, V] (not changed). The package page holds the definition."""
    rows = logits.shape[0]
    out = empty(rows, int(batch.num_logprobs.max(initial=0)))
    for s in range(rows):
        raw = logits[s]
        if is_broken(raw):
            out.errors[s] = NUMERIC
            continue
        scores = penalize(raw, batch, s)
        best = scores.max()
        if not np.isfinite(best):  # nothing but bans; or a huge logit that a penalty made infinite
            out.errors[s] = NOTHING_LEFT if best == -np.inf else NUMERIC
            continue
        token = draw(scores, batch, s)
        out.tokens[s] = token
        if batch.num_logprobs[s] >= 0:
            fill(out, s, raw, token, int(batch.num_logprobs[s]))
    return out


def penalize(raw: F32, batch: SampleBatch, row: int) -> F32:
    """Steps 3 to 5: mask, bias, penalties; a new array [V]."""
    scores = raw.astype(np.float32, copy=True)
    if batch.allowed is not None and batch.allowed.row[row] >= 0:
        scores[~_bits(batch.allowed.masks[batch.allowed.row[row]], scores.shape[0])] = -np.inf
    if batch.bias is not None:
        here = slice(batch.bias.start[row], batch.bias.start[row + 1])
        np.add.at(scores, batch.bias.ids[here], batch.bias.values[here])
    if batch.seen is not None:
        here = slice(batch.seen.start[row], batch.seen.start[row + 1])
        ids, counts = batch.seen.ids[here], batch.seen.counts[here].astype(np.float32)
        repetition, presence, frequency = batch.penalties[row]
        chosen = scores[ids]
        chosen = np.where(chosen > 0, chosen / repetition, chosen * repetition)
        scores[ids] = chosen - counts * frequency - np.where(counts > 0, presence, np.float32(0))
    return scores


def draw(scores: F32, batch: SampleBatch, row: int) -> int:
    """Steps 6 to 10: temperature, min_p, top_k, top_p, noise."""
    temperature = batch.temperature[row]
    if temperature < GREEDY_BELOW:
        return int(scores.argmax())
    scaled = (scores - scores.max()) / temperature
    keep = _kept(scaled, int(batch.top_k[row]), batch.top_p[row], batch.min_p[row])
    noisy = scaled + gumbel(int(batch.seeds[row]), int(batch.positions[row]), scaled.shape[0])
    return int(np.where(keep, noisy, -np.inf).argmax())


def _kept(scaled: F32, top_k: int, top_p: np.float32, min_p: np.float32) -> NDArray[np.bool_]:
    keep = scaled > -np.inf
    if min_p > 0:
        keep &= scaled >= np.log(min_p)
    if 0 < top_k < scaled.shape[0]:
        order = _order(scaled, keep)[:top_k]
        keep = np.zeros_like(keep)
        keep[order] = True
    if top_p < 1:
        order = _order(scaled, keep)
        mass = np.cumsum(_weights(scaled[order], scaled.shape[0]))
        needed = int(np.searchsorted(mass, float(top_p) * mass[-1], side="left")) + 1
        keep = np.zeros_like(keep)
        keep[order[:needed]] = True
    return keep


def _weights(scaled: F32, vocab: int) -> NDArray[np.float64]:
    """exp(scaled) in multiples of one quantum, so that sums of them are exact in float64 in any order."""
    quantum = 2.0**-35 if vocab <= 1 << 18 else 2.0**-29
    return np.rint(np.exp(scaled).astype(np.float64) / quantum) * quantum


def _order(scaled: F32, keep: NDArray[np.bool_]) -> NDArray[np.intp]:
    ids = np.flatnonzero(keep)
    return ids[np.argsort(-scaled[ids], kind="stable")]


def _bits(mask: NDArray[np.uint32], vocab: int) -> NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab].astype(bool)
