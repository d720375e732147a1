"""Runs the cases and compares every token and log-probability with those of requests that were alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig
from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.request import SamplingParams
from headrace.base.step import TokenLogprobs
from headrace.base.tasks import OFF
from headrace.engine.llm import LLM, with_overrides
from headrace.tools.verify.cases import Case, Overrides, Seen, cases, drafted

TEMPERATURE = 0.8
NUM_LOGPROBS = 2
_SHOWN = 3
WRONG = frozenset({"differs", "failed"})
"""Outcomes that end with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place at which an answer differs."""

    prompt: int
    """Number of the prompt, from 0."""
    token: int
    """Place in the answer, from 0."""
    wanted: str
    got: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a case."""

    case: str
    about: str
    requests: int
    tokens: int
    """Of the answers that were compared."""
    differences: tuple[Difference, ...]
    exercise: str
    """What the run did of what the case is about; empty: nothing, so it proves nothing."""
    seconds: float
    error: str = ""
    """Why it could not be run."""

    @property
    def outcome(self) -> str:
        """`exact`, `differs`, `not exercised` or `failed`."""
        if self.error:
            return "failed"
        if self.differences:
            return "differs"
        return "exact" if self.exercise else "not exercised"

    def text(self) -> str:
        """A line, and one for each of the first differences."""
        detail = self.exercise or self.error or "what it is about did not happen with these prompts"
        lines = [
            f"{self.outcome:14}{self.case:12}{self.tokens:6} tokens {self.seconds:6.1f} s  "
            f"{self.about} ({detail})"
        ]
        lines += [
            f"{'':14}prompt {one.prompt}, token {one.token}: alone {one.wanted}; here {one.got}"
            for one in self.differences[:_SHOWN]
        ]
        return "\n".join(lines)


def total_text(prompts: int, verdicts: Sequence[Verdict]) -> str:
    """The whole in a line: cases that proved nothing are not counted as exact."""
    is_exact = not any(verdict.outcome in WRONG for verdict in verdicts)
    idle = sum(verdict.outcome == "not exercised" for verdict in verdicts)
    ran = len(verdicts) - idle
    if is_exact and not ran:
        return f"nothing proved: {prompts} prompts, {idle} cases not exercised (use more or longer prompts)"
    begin = f"{'exact' if is_exact else 'NOT exact'}: {prompts} prompts, {ran} cases"
    return f"{begin}; {idle} not exercised (use more or longer prompts)" if idle else begin


@dataclass(frozen=True, slots=True)
class _Answer:
    """What must be equal, bit for bit."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str


class Verifying:
    """A model and prompts.

    Args:
        config: settings that answers are given with; what they speculate with gets its own case, and all
            others run without.
        prompts: texts.
        max_tokens: most tokens of an answer.
        speculate: methods of speculation, each of which gets a case; none: the one of the settings.

    Raises:
        ConfigError: a prompt leaves no room for an answer, or a method that there is not.
    """

    def __init__(
        self, config: EngineConfig, prompts: Sequence[str], max_tokens: int, speculate: Sequence[str] = ()
    ) -> None:
        own = config.speculate.method
        methods = drafted(speculate or ([] if own == OFF else [own]))
        self._config = config = with_overrides(config, {"speculate": {"method": OFF}})
        baseline = with_overrides(config, {"kv": {"prefix_cache": False}})
        with LLM(baseline) as llm:
            self._resolved = llm.resolved
            tokenizer = llm.tokenizer
            if tokenizer is None:
                raise ConfigError("the model has no tokenizer, so its prompts cannot be read")
            self._prompts = [tokenizer.encode(text) for text in prompts]
            self._params = self._sampling(max_tokens)
            most = llm.resolved.max_model_len
            for number, ids in enumerate(self._prompts):
                if len(ids) + max_tokens > most:
                    raise ConfigError(
                        f"prompt {number} has {len(ids)} tokens; with {max_tokens} of an answer that exceeds "
                        f"the context limit of {most}: shorten it, or lower --max-tokens"
                    )
            began_s = now_s()
            self._wanted = _alone(llm, self._prompts, self._params)
            self.seconds = now_s() - began_s
        self.cases = cases(self._resolved, [len(ids) for ids in self._prompts], max_tokens, methods)

    def run(self, only: Sequence[str] = ()) -> Iterator[Verdict]:
        """The verdict of each case, as it is found.

        Args:
            only: names of cases; none: all.

        Raises:
            ConfigError: no such case.
        """
        known = [case.name for case in self.cases]
        for name in only:
            if name not in known:
                raise ConfigError(f"there is no case {name!r}; cases here: {', '.join(known)}")
        for case in self.cases:
            if not only or case.name in only:
                yield self._verdict(case)

    def _verdict(self, case: Case) -> Verdict:
        began_s = now_s()
        answers: list[_Answer] = []
        exercise = error = ""
        try:
            answers, seen = _run(self._config, case, self._prompts, self._params)
            exercise = case.exercise(seen)
        except HeadraceError as failure:
            error = failure.message
        return Verdict(
            case=case.name,
            about=case.about,
            requests=len(answers),
            tokens=sum(len(answer.token_ids) for answer in answers),
            differences=tuple(differences(self._wanted, answers)) if answers else (),
            exercise=exercise,
            seconds=now_s() - began_s,
            error=error,
        )

    def _sampling(self, max_tokens: int) -> list[SamplingParams]:
        """Greedy and drawn in turn: both must be exact."""
        plain = SamplingParams(max_tokens=max_tokens, logprobs=NUM_LOGPROBS, temperature=0.0, ignore_eos=True)
        drawn = replace(plain, temperature=TEMPERATURE)
        return [replace(drawn if i % 2 else plain, seed=i) for i in range(len(self._prompts))]


def differences(wanted: Sequence[_Answer], got: Sequence[_Answer]) -> Iterator[Difference]:
    """The first difference of each answer that has one."""
    for number, (want, have) in enumerate(zip(wanted, got, strict=True)):
        if want == have:
            continue
        pairs = zip(_places(want), _places(have), strict=False)
        at = next(
            (i for i, (a, b) in enumerate(pairs) if a != b), min(len(want.token_ids), len(have.token_ids))
        )
        yield Difference(prompt=number, token=at, wanted=_place(want, at), got=_place(have, at))


def _places(answer: _Answer) -> list[tuple[int, TokenLogprobs]]:
    return list(zip(answer.token_ids, answer.logprobs, strict=True))


def _place(answer: _Answer, at: int) -> str:
    if at >= len(answer.token_ids):
        return f"the end ({answer.finish_reason})"
    return f"token {answer.token_ids[at]}, log-probability {answer.logprobs[at].logprob!r}"


def _run(
    config: EngineConfig, case: Case, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> tuple[list[_Answer], Seen]:
    with LLM(with_overrides(config, _kept(config, case.overrides))) as llm:
        answers: list[_Answer] = []
        for _ in range(case.rounds):
            answers = (_alone if case.is_alone else _together)(llm, prompts, params)
        return answers, Seen(counters=llm.stats().counters, prompt_tokens=[len(ids) for ids in prompts])


def _kept(config: EngineConfig, overrides: Overrides) -> dict[str, Mapping[str, Any]]:
    """A number of blocks wins over bytes that the settings name."""
    kept = {section: dict(values) for section, values in overrides.items()}
    if "num_blocks" in kept.get("kv", {}) and config.kv.pool_bytes is not None:
        kept["kv"]["pool_bytes"] = None
    return dict(kept)


def _together(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[_Answer]:
    found = llm.generate([list(ids) for ids in prompts], params, progress=False)
    return [_Answer(r.token_ids, r.choices[0].logprobs, r.finish_reason) for r in found]


def _alone(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[_Answer]:
    return [_together(llm, [ids], [own])[0] for ids, own in zip(prompts, params, strict=True)]
