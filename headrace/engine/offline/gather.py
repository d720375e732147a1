"""From outputs to whole results."""

from dataclasses import dataclass, field

from headrace.base.step import TokenLogprobs
from headrace.engine.intake import Prepared
from headrace.engine.outputs import (
    ChoiceDelta,
    Completion,
    EmbeddingResult,
    GenerationResult,
    RequestOutput,
)
from headrace.host.text.parts.events import Gathering


@dataclass(slots=True)
class _Whole:
    """One choice so far."""

    text: list[str] = field(default_factory=list[str])
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    finish: ChoiceDelta | None = None
    parts: Gathering | None = None


class Gathered:
    """A request whose outputs are joined.

    Args:
        prepared: the request.
        prompt: its text, when it came as text.
    """

    def __init__(self, prepared: Prepared, prompt: str | None) -> None:
        self.prepared = prepared
        self._prompt = prompt
        self._choices = [_Whole() for _ in range(prepared.params.n)]
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._last: RequestOutput | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the last output is here."""
        return self._last is not None and self._last.finished

    def add(self, output: RequestOutput) -> None:
        """Join one more output."""
        self._last = output
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        for delta in output.choices:
            whole = self._choices[delta.index]
            whole.text.append(delta.text)
            whole.ids.extend(delta.token_ids)
            whole.logprobs.extend(delta.logprobs)
            if delta.parts is not None:
                whole.parts = whole.parts or Gathering()
                whole.parts.add(delta.parts)
            if delta.finish_reason is not None:
                whole.finish = delta

    def result(self) -> GenerationResult:
        """The whole answer.

        Raises:
            ValueError: the last output has not come yet.
        """
        last = self._finished()
        return GenerationResult(
            request_id=self.prepared.request_id,
            prompt=self._prompt,
            prompt_ids=self.prepared.prompt_ids,
            choices=tuple(_completion(i, whole) for i, whole in enumerate(self._choices)),
            usage=last.usage,
            seed=self.prepared.seed,
            prompt_logprobs=self._prompt_logprobs,
            timings=dict(last.timings or {}),
            drafts=last.drafts,
        )

    def embedding(self, *, normalize: bool) -> EmbeddingResult:
        """The vector of a request that asked for pooling.

        Raises:
            ValueError: the last output has not come yet.
        """
        return EmbeddingResult.of(self._finished(), self._prompt, normalize=normalize)

    def _finished(self) -> RequestOutput:
        last = self._last
        if last is None or not last.finished:
            raise ValueError(f"request {self.prepared.request_id!r} is not finished")
        return last


def _completion(index: int, whole: _Whole) -> Completion:
    finish = whole.finish
    return Completion(
        index=index,
        text="".join(whole.text),
        token_ids=tuple(whole.ids),
        finish_reason=(finish.finish_reason if finish else None) or "",
        stop_reason=finish.stop_reason if finish else None,
        logprobs=tuple(whole.logprobs),
        cumulative_logprob=finish.cumulative_logprob if finish else None,
        message=whole.parts.message() if whole.parts is not None else None,
    )
