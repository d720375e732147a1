"""Beam search as arithmetic: totals of log-probabilities in, the beginnings to follow out.

vLLM's definition (`LLM.beam_search`): in each round every beginning offers its 2 * width most likely next
tokens. One that an end token completes becomes an answer; of the others, the `width` best totals go on. A
beginning that reaches `max_tokens` is an answer too. The score of an answer is

    sum of log-probabilities / (tokens of prompt and answer, without the end token) ** length_penalty

and ties go to what was found first. Sums are float64, in the order of the tokens. The search ends early only
when no answer to come could be among the best (or, with `early_stopping`, at `width` complete answers).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.base.request import FinishReason
from headrace.base.step import Hypothesis, TokenLogprobs
from headrace.base.tasks import BeamSearch

Child = tuple[int, int]
"""(number of the beginning it continues, next token)."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One search on its way.

    Beginnings are numbered by rank; `advance` numbers them anew.
    """

    task: BeamSearch
    num_prompt: int
    max_tokens: int
    end_ids: frozenset[int]
    totals: list[float] = field(default_factory=lambda: [0.0])
    """Sum of log-probabilities of each beginning, best first."""
    num_output: int = 0
    """Tokens of every beginning."""
    answers: list[Hypothesis] = field(default_factory=list[Hypothesis])
    """The best complete answers so far, at most `width`, best first."""

    def advance(self, outputs: Sequence[tuple[int, ...]], offers: Sequence[TokenLogprobs]) -> list[Child]:
        """Take one round.

        Args:
            outputs: the tokens of each beginning so far.
            offers: what each offers: its most likely next tokens.

        Returns:
            The beginnings to follow, best first; none: the search is over.
        """
        self.num_output += 1
        found: list[tuple[float, Child]] = []
        for parent, offer in enumerate(offers):
            for token, value in zip(offer.top_ids, offer.top_logprobs, strict=True):
                total = self.totals[parent] + value
                if token in self.end_ids:
                    self._complete((*outputs[parent], token), total, FinishReason.STOP)
                else:
                    found.append((total, (parent, token)))
        found.sort(
            key=lambda item: -item[0]
        )  # stable: ties go to the better beginning and the likelier token
        found = found[: self.task.width]
        self.totals = [total for total, _ in found]
        if self._is_over():
            return []
        if self.num_output >= self.max_tokens:
            for total, (parent, token) in found:
                self._complete((*outputs[parent], token), total, FinishReason.LENGTH)
            return []
        return [child for _, child in found]

    def _complete(self, tokens: tuple[int, ...], total: float, finish: FinishReason) -> None:
        length = self.num_prompt + len(tokens) - (finish is FinishReason.STOP)
        answer = Hypothesis(token_ids=tokens, logprob=total, score=self._score(total, length), finish=finish)
        self.answers.append(answer)
        self.answers.sort(key=lambda item: -item.score)
        del self.answers[self.task.width :]

    def _score(self, total: float, length: int) -> float:
        return total / length**self.task.length_penalty

    def _is_over(self) -> bool:
        if not self.totals:
            return True
        if len(self.answers) < self.task.width:
            return False
        if self.task.early_stopping:
            return True
        # A total only falls, so the best beginning bounds all; between the lengths still possible the score
        # grows or falls with the length.
        lengths = self.num_prompt + self.num_output, self.num_prompt + self.max_tokens
        return self.answers[-1].score >= max(self._score(self.totals[0], length) for length in lengths)
