"""The model's own answers, as token ids."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.base.clock import now_s
from headrace.base.request import SamplingParams
from headrace.engine.llm import LLM

BATCH = 32
"""Prompts that are answered together."""


class Sample(NamedTuple):
    """A prompt and its answer."""

    ids: tuple[int, ...]
    num_prompt: int

    @property
    def num_answer(self) -> int:
        """Tokens of the answer."""
        return len(self.ids) - self.num_prompt


def answers(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, seconds: float, most_tokens: int
) -> Iterator[Sample]:
    """Answers until the time is over or `most_tokens` were written, prompts from the first again and again.

    Args:
        llm: the target.
        prompts: at least one; taken as a user's message where the model has a chat template.
        params: seed s becomes s + 1, s + 2 ... from answer to answer.
        seconds: no further batch begins after that.
        most_tokens: tokens of answers in all.
    """
    end_s, count, num_tokens = now_s() + seconds, 0, 0
    is_chat = llm.chat_template.mentions("")
    while num_tokens < most_tokens and (not count or now_s() < end_s):
        texts = [prompts[(count + i) % len(prompts)] for i in range(min(BATCH, len(prompts)))]
        each = [_with_seed(params, count + i) for i in range(len(texts))]
        count += len(texts)
        if is_chat:
            results = llm.chat([[{"role": "user", "content": text}] for text in texts], each, progress=False)
        else:
            results = llm.generate(texts, each, progress=False)
        for result in results:
            ids = (*result.prompt_ids, *result.token_ids)
            sample = Sample(ids, len(result.prompt_ids))
            num_tokens += sample.num_answer
            yield sample


def _with_seed(params: SamplingParams, offset: int) -> SamplingParams:
    return replace(params, seed=((params.seed or 0) + 1 + offset) % (1 << 62))
