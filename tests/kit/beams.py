"""Beam search by definition: every beginning scored from scratch, no blocks, no forks, no batches."""

from collections.abc import Callable, Sequence

from headrace.base.request import FinishReason, Request
from headrace.base.step import Hypothesis

Score = Callable[[tuple[int, ...]], list[tuple[int, float]]]
"""Tokens of prompt and answer -> the next tokens and their log-probabilities, the most likely first."""


def score(request: Request, tokens: tuple[int, ...], total: float, *, ended: bool) -> float:
    return total / (len(request.prompt_ids) + len(tokens) - ended) ** request.task.length_penalty


def answer(request: Request, tokens: tuple[int, ...], total: float, *, ended: bool) -> Hypothesis:
    finish = FinishReason.STOP if ended else FinishReason.LENGTH
    value = score(request, tokens, total, ended=ended)
    return Hypothesis(token_ids=tokens, logprob=total, score=value, finish=finish)


def by_rounds(request: Request, offers: Score) -> tuple[Hypothesis, ...]:
    """vLLM's loop as it stands there: all rounds to `max_tokens`, everything complete kept."""
    width, done = request.task.width, []
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(request.sampling.max_tokens or 0):
        fresh = []
        for tokens, total in live:
            for token, value in offers(request.prompt_ids + tokens)[: 2 * width]:
                if token in request.end_ids:
                    done.append(answer(request, (*tokens, token), total + value, ended=True))
                else:
                    fresh.append(((*tokens, token), total + value))
        live = sorted(fresh, key=lambda item: item[1], reverse=True)[:width]
        if request.task.early_stopping and len(done) >= width:
            live = []
            break
    done += [answer(request, tokens, total, ended=False) for tokens, total in live]
    return tuple(sorted(done, key=lambda item: item.score, reverse=True)[:width])


def exhaustive(request: Request, offers: Score) -> tuple[Hypothesis, ...]:
    """Every answer there is, scored; for a width at which a search cuts nothing off."""
    done: list[Hypothesis] = []

    def walk(tokens: tuple[int, ...], total: float) -> None:
        for token, value in offers(request.prompt_ids + tokens):
            longer = (*tokens, token)
            if token in request.end_ids:
                done.append(answer(request, longer, total + value, ended=True))
            elif len(longer) == request.sampling.max_tokens:
                done.append(answer(request, longer, total + value, ended=False))
            else:
                walk(longer, total + value)

    walk((), 0.0)
    return tuple(sorted(done, key=lambda item: item.score, reverse=True)[: request.task.width])


def same_but_ties(one: Sequence[Hypothesis], other: Sequence[Hypothesis]) -> bool:
    """Equal scores in order; equal answers, where no other has the same score."""
    scores = [h.score for h in one]
    unique = [h for h in one if scores.count(h.score) == 1 and h.score != scores[-1]]
    return scores == [h.score for h in other] and all(h in other for h in unique)
