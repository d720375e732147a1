"""What the result of a row means for its sequence."""

from headrace.base.errors import InvariantError
from headrace.base.request import FinishReason
from headrace.base.step import Delta, Row, RowResult, TokenLogprobs
from headrace.host.sched.sequence import Sequence

Outcome = tuple[Delta, FinishReason | None]
"""News of one row, and whether it ends the sequence."""


def accept(seq: Sequence, row: Row, result: RowResult) -> Outcome:
    """Take a result into the sequence: tokens, counters, the end.

    Tokens after an end id or beyond `max_tokens` are dropped. The KV of rejected drafts is not valid; their
    positions are computed again.

    Raises:
        InvariantError: the result does not answer the row.
    """
    if seq.is_beam:
        return _accept_offer(seq, row, result)
    tokens = result.tokens
    if len(tokens) == 1 and row.sample and not row.num_drafts and not result.prompt_logprobs:
        return _accept_one(seq, row, result)
    if (len(tokens) == 0) == row.sample or len(tokens) > row.num_drafts + 1:
        raise InvariantError(
            f"row of {seq.request_id!r} with {row.num_drafts} drafts, sample={row.sample}, "
            f"gave {len(tokens)} tokens"
        )
    if not seq.draws:
        return _accept_pooled(seq, row, result)
    kept, finish = _cut_at_end(seq, tokens)
    prompt_logprobs = _new_prompt_logprobs(seq, row, result)
    seq.tokens.extend(kept)
    seq.pending -= int(row.sample)
    seq.num_drafts, seq.num_held, seq.num_late = 0, result.num_drafts, result.drafted.num_late
    accepted = max(0, len(tokens) - 1)
    computed = row.start + row.count - row.num_drafts + accepted
    if row.num_drafts:
        seq.num_computed = computed
    seq.num_valid = min(computed, len(seq.tokens))
    is_first = bool(kept) and len(seq.tokens) == seq.num_prompt + len(kept)
    news = Delta(
        request_id=seq.request_id,
        new_ids=kept,
        logprobs=result.logprobs[: len(kept)],
        prompt_logprobs=prompt_logprobs,
        stop_id=kept[-1] if finish is FinishReason.STOP else None,
        cached_tokens=seq.life.cached_tokens if is_first else 0,
        num_preempted=seq.life.num_preempted,
    )
    return news, finish


def last_words(seq: Sequence, row: Row, result: RowResult) -> Delta:
    """What a row that failed gave before: log-probabilities of the prompt, however it was cut into rows."""
    return Delta(seq.request_id, prompt_logprobs=_new_prompt_logprobs(seq, row, result))


def _accept_one(seq: Sequence, row: Row, result: RowResult) -> Outcome:
    """`accept` for one drawn token and nothing else, which is what nearly every row gives."""
    (token,) = result.tokens
    drawn = len(seq.tokens) - seq.num_prompt
    finish = seq.ends_at(token, drawn)
    seq.tokens.append(token)
    seq.pending -= 1
    seq.num_drafts, seq.num_held, seq.num_late = 0, result.num_drafts, result.drafted.num_late
    seq.num_valid = min(row.start + row.count, len(seq.tokens))
    life = seq.life
    news = Delta(
        seq.request_id,
        result.tokens,
        result.logprobs,
        stop_id=token if finish is FinishReason.STOP else None,
        cached_tokens=0 if drawn else life.cached_tokens,
        num_preempted=life.num_preempted,
    )
    return news, finish


def _accept_offer(seq: Sequence, row: Row, result: RowResult) -> Outcome:
    """`accept` for a beam: the tokens it offers wait for those of the other beams."""
    seq.num_valid = row.start + row.count
    if row.sample:
        if not result.logprobs or not result.logprobs[0].top_ids:
            raise InvariantError(f"the row of beam {seq.request_id!r} offers no tokens")
        seq.offer = result.logprobs[0]
    return Delta(seq.request_id), None


def _accept_pooled(seq: Sequence, row: Row, result: RowResult) -> Outcome:
    """`accept` for a prompt whose hidden states are pooled: it ends with its last token."""
    seq.num_valid = row.start + row.count
    if seq.num_valid < seq.num_prompt:
        return Delta(seq.request_id), None
    if not result.pooled:
        raise InvariantError(f"the last row of {seq.request_id!r} gave no pooled hidden states")
    life = seq.life
    news = Delta(
        request_id=seq.request_id,
        cached_tokens=life.cached_tokens,
        num_preempted=life.num_preempted,
        pooled=result.pooled,
    )
    return news, FinishReason.STOP


def _cut_at_end(seq: Sequence, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
    for i, token in enumerate(tokens):
        if finish := seq.ends_at(token, seq.num_output + i):
            return tokens[: i + 1], finish
    return tokens, None


def _new_prompt_logprobs(seq: Sequence, row: Row, result: RowResult) -> tuple[TokenLogprobs, ...]:
    """Those of positions not delivered before: a preempted sequence computes its prompt again."""
    if not result.prompt_logprobs or seq.request.sampling.prompt_logprobs is None:
        return ()
    known = seq.num_prompt_logprobs - row.start
    if known < 0:
        raise InvariantError(
            f"prompt log-probabilities of {seq.request_id!r} skip positions "
            f"{seq.num_prompt_logprobs + 1} to {row.start}"
        )
    new = result.prompt_logprobs[known:]
    seq.num_prompt_logprobs += len(new)
    return new
