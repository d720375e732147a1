"""Raw log-probabilities, ranks and the most likely tokens of rows of logits."""

import numpy as np

from headrace.compute.ops.api import F32, I32, Sampled


def log_normalizer(logits: F32) -> np.float32:
    """log(sum(exp(logits))) of one row [V]."""
    top = logits.max()
    return top + np.log(np.exp(logits - top).sum(dtype=np.float32))


def rank_of(logits: F32, token: int) -> int:
    """1 + the number of tokens that come before `token`: larger value, or equal value and lower id."""
    value = logits[token]
    return 1 + int((logits > value).sum()) + int((logits[:token] == value).sum())


def best(logits: F32, k: int) -> I32:
    """Ids of the k first tokens of one row, larger value first, ties by lower id."""
    k = min(k, logits.shape[0])
    if k <= 0:
        return np.empty(0, np.int32)
    threshold = np.partition(logits, logits.shape[0] - k)[logits.shape[0] - k]
    candidates = np.flatnonzero(logits >= threshold)
    return candidates[np.argsort(-logits[candidates], kind="stable")][:k].astype(np.int32)


def is_broken(logits: F32) -> bool:
    """Whether a row holds a NaN or +inf, or nothing but -inf."""
    return not np.isfinite(logits.max())


def report(logits: F32, tokens: I32, k: int) -> Sampled:
    """Log-probability and rank of `tokens` [S] and the k most likely tokens of raw `logits` [S, V]."""
    rows = logits.shape[0]
    out = empty(rows, k)
    for s in range(rows):
        out.tokens[s] = tokens[s]
        if is_broken(logits[s]):
            out.errors[s] = 1
            continue
        fill(out, s, logits[s], int(tokens[s]), k)
    return out


def empty(rows: int, k: int) -> Sampled:
    """A result with room for k top tokens per row, all unused."""
    return Sampled(
        tokens=np.full(rows, -1, np.int32),
        logprobs=np.zeros(rows, np.float32),
        ranks=np.zeros(rows, np.int32),
        errors=np.zeros(rows, np.int32),
        top_ids=np.full((rows, max(k, 0)), -1, np.int32),
        top_logprobs=np.zeros((rows, max(k, 0)), np.float32),
    )


def fill(out: Sampled, row: int, raw: F32, token: int, k: int) -> None:
    """Write the report of one row into `out`."""
    norm = log_normalizer(raw)
    out.logprobs[row] = raw[token] - norm
    out.ranks[row] = rank_of(raw, token)
    ids = best(raw, k)
    out.top_ids[row, : len(ids)] = ids
    out.top_logprobs[row, : len(ids)] = raw[ids] - norm
