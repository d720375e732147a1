"""From token ids to text: detokenizing, stop strings, finish reasons, usage.

An `Answer` belongs to one API request and sees the deltas of its choices in order, token by token, so that
what it says does not depend on how many tokens a step gave. Each choice finishes exactly once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError, NumericError, RequestError
from headrace.base.faults import error_of
from headrace.base.ids import RequestId
from headrace.base.messages import Fault
from headrace.base.metrics import e2el_s, queue_s, ttft_s
from headrace.base.metrics.drafts import DraftReport, added
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import FinishReason
from headrace.base.step import Delta, SequenceTiming, TokenLogprobs
from headrace.compute.runner.draws import NO_TOKEN
from headrace.engine.intake import Prepared
from headrace.engine.outputs import ChoiceDelta, RequestOutput, Usage
from headrace.engine.text import Text
from headrace.host.text.detokenizer import Detokenizer
from headrace.host.text.parts.events import Part
from headrace.host.text.parts.splitter import PartSplitter
from headrace.host.text.stop import StopScanner

PROMPT_TAIL = 8
TOOL_CALLS = "tool_calls"
"""The finish reason of an answer that the model ended, with calls in it."""


@dataclass(slots=True)
class _News:
    """What a delta means for a choice, before it is sent."""

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    parts: list[Part] = field(default_factory=list[Part])


class Choice:
    """One choice on its way.

    Args:
        index: its number.
        prepared: the request.
        text: tokenizer.
    """

    def __init__(self, index: int, prepared: Prepared, text: Text) -> None:
        params = prepared.params
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self._offset = 0
        self._params = params
        self._detokenizer: Detokenizer | None = None
        if text.tokenizer is not None:
            self._detokenizer = Detokenizer(
                text.tokenizer,
                skip_special=params.skip_special_tokens,
                prompt_tail=prepared.prompt_ids[-PROMPT_TAIL:],
                shown=text.special_ids(prepared.plan.marks) if prepared.plan is not None else (),
            )
        self._scanner: StopScanner | None = None
        if params.stop:
            self._scanner = StopScanner(params.stop, include=params.include_stop_str_in_output)
        self.stopped_by: str | None = None
        """The stop string that was found; the engine is then told to end the sequence."""
        self._splitter = PartSplitter(prepared.plan) if prepared.plan is not None else None

    @property
    def is_stopped(self) -> bool:
        """Nothing more is said, and the engine is told to end the sequence."""
        return self.stopped_by is not None or (self._splitter is not None and self._splitter.is_over)

    def take(self, delta: Delta) -> ChoiceDelta | None:
        """The news of a delta; None: the choice is over, or waits for the engine's end."""
        if self.is_finished:
            return None
        is_plain = len(delta.new_ids) == 1 and not delta.logprobs and delta.stop_id is None
        if is_plain and delta.finish is None and not self.is_stopped:
            return self._take_one(delta.new_ids)
        news = _News()
        if not self.is_stopped:
            self._read(delta, news)
        if delta.finish is not None:
            return self._finish(delta, news)
        return self._emit(news, None, None) if news.ids else None

    def _take_one(self, ids: tuple[int, ...]) -> ChoiceDelta:
        """`take` for a token in the midst of an answer, without log-probabilities."""
        self.num_tokens += 1
        text = "" if self._detokenizer is None else self._detokenizer.push(ids)
        if self._scanner is not None:
            text = self._scan(text)
        offset = self._offset
        self._offset += len(text)
        parts = None if self._splitter is None else tuple(self._splitter.push(text))
        return ChoiceDelta(index=self.index, text=text, token_ids=ids, text_offset=offset, parts=parts)

    def fail(self, reason: FinishReason) -> ChoiceDelta | None:
        """End the choice from outside; None when it is over."""
        return None if self.is_finished else self._close(_News(), reason.value, None)

    def _read(self, delta: Delta, news: _News) -> None:
        for i, token in enumerate(delta.new_ids):
            self.num_tokens += 1
            news.ids.append(token)
            if delta.logprobs:
                news.logprobs.append(delta.logprobs[i])
            is_stop_token = delta.stop_id is not None and i == len(delta.new_ids) - 1
            if not is_stop_token or self._shows_stop_token(token):
                self._say(news, self._scan(self._decode(token)))
            if self.is_stopped:
                return

    def _say(self, news: _News, text: str) -> None:
        news.text += text
        if self._splitter is not None:
            news.parts += self._splitter.push(text)

    def _shows_stop_token(self, token: int) -> bool:
        return self._params.include_stop_str_in_output and token in self._params.stop_token_ids

    def _decode(self, token: int) -> str:
        return "" if self._detokenizer is None else self._detokenizer.push((token,))

    def _scan(self, text: str) -> str:
        """Text to send; stop strings do not count before `min_tokens` tokens."""
        if self._scanner is None or self.num_tokens < self._params.min_tokens:
            return text
        shown, self.stopped_by = self._scanner.push(text)
        return shown

    def _finish(self, delta: Delta, news: _News) -> ChoiceDelta:
        if not self.is_stopped:
            self._say(news, self._scan(self._detokenizer.flush() if self._detokenizer is not None else ""))
            if self._scanner is not None and self.stopped_by is None:
                self._say(news, self._scanner.flush())
        if self.is_stopped:
            return self._close(news, FinishReason.STOP.value, self.stopped_by)
        finish = delta.finish or FinishReason.ABORT
        reason = delta.stop_id if delta.stop_id in self._params.stop_token_ids else None
        return self._close(news, finish.value, reason)

    def _close(self, news: _News, finish: str, reason: int | str | None) -> ChoiceDelta:
        self.is_finished = True
        if self._splitter is not None:
            news.parts += self._splitter.flush(is_cut=finish != FinishReason.STOP.value)
            if finish == FinishReason.STOP.value and self._splitter.num_calls:
                finish = TOOL_CALLS
        return self._emit(news, finish, reason)

    def _emit(self, news: _News, finish: str | None, reason: int | str | None) -> ChoiceDelta:
        offset = self._offset
        self._offset += len(news.text)
        return ChoiceDelta(
            index=self.index,
            text=news.text,
            token_ids=tuple(news.ids),
            logprobs=tuple(news.logprobs),
            finish_reason=finish,
            stop_reason=reason,
            text_offset=offset,
            parts=None if self._splitter is None else tuple(news.parts),
        )


class Answer:
    """One API request on its way: feed it deltas, get outputs.

    Not thread-safe: the thread that receives events calls it.
    """

    def __init__(self, prepared: Prepared, text: Text) -> None:
        self.prepared = prepared
        names = [r.request_id for r in prepared.requests]
        if prepared.params.beams is not None:
            names += [RequestId(f"{names[0]}.{i}") for i in range(1, prepared.params.n)]
        self._choices = {name: Choice(i, prepared, text) for i, name in enumerate(names)}
        self._only = next(iter(self._choices.values())) if len(self._choices) == 1 else None
        self._cached_tokens = 0
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._sent_prompt_logprobs = prepared.params.prompt_logprobs is None
        self._timings: dict[str, float] = {}
        self._drafts: DraftReport | None = None
        self.timeline: Timeline | None = None
        """That of the choice that ended last."""
        self._pooled = b""
        self.is_finished = False

    @property
    def open_ids(self) -> tuple[RequestId, ...]:
        """Sequences that the engine has not ended yet."""
        return tuple(i for i, choice in self._choices.items() if not choice.is_finished)

    def take(self, deltas: Iterable[Delta]) -> tuple[RequestOutput | None, tuple[RequestId, ...]]:
        """The output for these deltas, and the sequences that the engine must end (stop string found)."""
        news: list[ChoiceDelta] = []
        to_stop: list[RequestId] = []
        error: HeadraceError | None = None
        for delta in deltas if self.prepared.params.beams is None else self._ranked(deltas):
            choice = self._choices[delta.request_id]
            was_stopped = choice.is_stopped
            self._note(delta, choice)
            choice_news = choice.take(delta)
            if choice_news is not None:
                news.append(choice_news)
                if delta.beams:
                    choice_news.cumulative_logprob = delta.beams[0].logprob
            if choice.is_stopped and not was_stopped and not choice.is_finished:
                to_stop.append(delta.request_id)
            if delta.error is not None:
                error = _error_of(delta.error, delta.error_kind)
        if error is not None:
            to_stop = list(self.open_ids)
            news.extend(self._fail_open(FinishReason.ERROR))
        return self._output(news, error), tuple(to_stop)

    def _ranked(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        """Deltas of a beam search as those of its choices: the first choice is the best answer."""
        for delta in deltas:
            for i, name in enumerate(self._choices):
                own = delta._replace(request_id=name, timing=None if i else delta.timing, beams=())
                if i < len(delta.beams):
                    found = delta.beams[i]
                    is_stop = found.finish is FinishReason.STOP
                    own = own._replace(
                        new_ids=found.token_ids,
                        finish=found.finish,
                        stop_id=found.token_ids[-1] if is_stop else None,
                        beams=(found,),
                    )
                yield own

    def fail(self, error: HeadraceError) -> RequestOutput | None:
        """End the request with an error; None when it is over."""
        if self.is_finished:
            return None
        return self._output(self._fail_open(FinishReason.ERROR), error)

    def _fail_open(self, reason: FinishReason) -> list[ChoiceDelta]:
        ended = (choice.fail(reason) for choice in self._choices.values())
        return [delta for delta in ended if delta is not None]

    def _note(self, delta: Delta, choice: Choice) -> None:
        if choice.index == 0:
            self._cached_tokens = max(self._cached_tokens, delta.cached_tokens)
            self._prompt_logprobs.extend(delta.prompt_logprobs)
        if delta.pooled:
            self._pooled = delta.pooled
            self._cached_tokens = delta.cached_tokens
        if delta.timing is not None:
            self._note_timing(delta.timing, delta.num_preempted)

    def _note_timing(self, timing: SequenceTiming, num_preempted: int) -> None:
        """The leader's moments; the end is that of the last choice."""
        told, known = timing.timeline, self.timeline
        if told is not None and (known is None or told.until_s >= known.until_s):
            self.timeline = told
        mine = self._timings
        self._drafts = added(self._drafts, timing.drafts)
        parts = {
            "queue_s": _span(timing.arrival_s, timing.first_scheduled_s, queue_s),
            "prefill_s": _span(timing.first_scheduled_s, timing.first_token_s),
            "ttft_s": _span(timing.arrival_s, timing.first_token_s, ttft_s),
        }
        for name, seconds in parts.items():
            mine.setdefault(name, seconds)
        mine["decode_s"] = max(mine.get("decode_s", 0.0), _span(timing.first_token_s, timing.finished_s))
        mine["e2e_s"] = max(mine.get("e2e_s", 0.0), _span(timing.arrival_s, timing.finished_s, e2el_s))
        sums: dict[str, float] = {
            "steps": timing.num_steps,
            "prefill_tokens": timing.prefill_tokens,
            "preempted": num_preempted,
            "draft_n": timing.num_drafts_checked,
            "draft_n_accepted": timing.num_drafts_accepted,
            **{f"wait_{reason}_s": seconds for reason, seconds in timing.waits},
        }
        for name, value in sums.items():
            mine[name] = mine.get(name, 0.0) + value

    def _output(self, news: list[ChoiceDelta], error: HeadraceError | None) -> RequestOutput | None:
        finished, num_tokens = self._progress()
        prompt_logprobs = self._take_prompt_logprobs()
        if not news and prompt_logprobs is None and error is None:
            return None
        self.is_finished = finished
        prepared = self.prepared
        accepted = int(self._timings.get("draft_n_accepted", 0))
        return RequestOutput(
            request_id=prepared.request_id,
            prompt_ids=prepared.prompt_ids,
            choices=tuple(news),
            finished=finished,
            usage=Usage(
                prompt_tokens=len(prepared.prompt_ids),
                completion_tokens=num_tokens,
                cached_tokens=self._cached_tokens,
                accepted_drafts=accepted,
                rejected_drafts=int(self._timings.get("draft_n", 0)) - accepted,
            ),
            seed=prepared.seed,
            prompt_logprobs=prompt_logprobs,
            timings=self._timings if finished else None,
            drafts=self._drafts if finished else None,
            error=error,
            pooled=self._pooled,
        )

    def _progress(self) -> tuple[bool, int]:
        """Whether all choices are finished, and their tokens so far."""
        if self._only is not None:
            return self._only.is_finished, self._only.num_tokens
        choices = self._choices.values()
        return all(c.is_finished for c in choices), sum(c.num_tokens for c in choices)

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        if self._sent_prompt_logprobs or len(self._prompt_logprobs) < len(self.prepared.prompt_ids) - 1:
            return None
        self._sent_prompt_logprobs = True
        return (None, *self._prompt_logprobs)


def _error_of(text: str, kind: str) -> HeadraceError:
    if kind:
        return error_of(Fault(kind=kind, message=text, retry_after_s=1.0))
    return RequestError(text) if text == NO_TOKEN else NumericError(text)


def _span(begin_s: float, end_s: float, figure: Callable[[float, float], float] = e2el_s) -> float:
    """A figure of two moments; 0 when one of them never came."""
    return max(0.0, figure(begin_s, end_s)) if begin_s and end_s else 0.0
