"""The walk: each knob's values against the best so far; what is shown to be better is taken.

At the end the best is compared with the start (the defaults, or settings given) in fresh pairs; unless it is
better again, the start stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError
from headrace.tools.tune.divergence import EXACT, Loss
from headrace.tools.tune.duel import Gain, Rules, Verdict, gain, judge
from headrace.tools.tune.knobs import DEFAULT, Knob, Point

CONFIRMING = 0.25
"""The share of the budget that is kept for the comparison with the start."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair: the second's score over the first's, and what it took."""

    ratio: float
    seconds: float


MeasurePair = Callable[[Point, Point, int], Pair]
"""Measures (first, second, number of the pair); raises `HeadraceError` when a setting is refused.

The number is one of the whole search: a server that stays up must not be asked again what it has cached.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """How far answers may move."""

    measure: Callable[[Point], Loss]
    max_kl: float
    """Nats a token."""


@dataclass(slots=True)
class Trial:
    """Two points that were compared."""

    knob: str
    """The setting that differs; empty: the comparison with the start."""
    first: Point
    second: Point
    ratios: list[float] = field(default_factory=list[float])
    verdict: Verdict = Verdict.OPEN
    error: str = ""
    """Why the second could not be measured, or was not."""
    loss: Loss = EXACT
    """What the second does to the answers."""

    def gain(self, confidence: float) -> Gain | None:
        """With fewer than two pairs there is none."""
        return gain(self.ratios, confidence) if len(self.ratios) > 1 else None


@dataclass(frozen=True, slots=True)
class Found:
    """What a search ended with."""

    best: Point
    """Shown to be better than the start, or the start."""
    trials: tuple[Trial, ...]
    seconds: float
    is_out_of_time: bool
    start: Point
    needed_s: float = 0.0
    """A budget that would have sufficed for what was not tried or not decided, at the least."""


OnPair = Callable[[Trial], None]


class Search:
    """One search.

    Args:
        measure: measures a pair.
        rules: when a difference counts.
        budget_s: seconds of measuring, the last comparison included.
        on_pair: told after each pair.
        start: the settings that are to be improved.
        bound: of settings that change answers; None: nothing of the kind is tried.
    """

    def __init__(
        self,
        measure: MeasurePair,
        rules: Rules,
        budget_s: float,
        on_pair: OnPair | None = None,
        start: Point = DEFAULT,
        bound: Bound | None = None,
    ) -> None:
        self._bound = bound
        self._start = start
        self._measure = measure
        self._rules = rules
        self._budget_s = budget_s
        self._on_pair = on_pair
        self._trials: list[Trial] = []
        self._spent_s = self._longest_s = 0.0
        self._is_out_of_time = False
        self._num_pairs = 0

    def run(self, knobs: Sequence[Knob]) -> Found:
        """Walk through the knobs in their order."""
        best = self._start
        for knob in knobs:
            for value in knob.values:
                trial = self._duel(
                    Trial(knob.setting, best, dict(best) | {knob.setting: value}),
                    self._budget_s - self._reserve_s(is_needed=best != self._start),
                )
                if trial.verdict is Verdict.BETTER:
                    best = trial.second
        if best != self._start:
            confirmed = self._duel(Trial("", self._start, best), self._budget_s)
            if confirmed.verdict is not Verdict.BETTER:
                best = self._start
        return Found(
            best, tuple(self._trials), self._spent_s, self._is_out_of_time, self._start, self._needed_s()
        )

    def _reserve_s(self, *, is_needed: bool) -> float:
        """Seconds for the last comparison: when there is one, enough for a verdict."""
        least_s = self._rules.least_pairs * self._longest_s if is_needed else 0.0
        return max(CONFIRMING * self._budget_s, least_s)

    def _needed_s(self) -> float:
        short = [t for t in self._trials if t.verdict is Verdict.OPEN]
        missing = sum(max(1, self._rules.least_pairs - len(t.ratios)) for t in short)
        confirming = 0 if any(not t.knob for t in self._trials) else self._rules.least_pairs
        return self._spent_s + (missing + confirming) * self._longest_s

    def _moves_too_far(self, trial: Trial) -> str:
        """Why the second may not be taken, whatever its speed; empty: it may."""
        if self._bound is None:
            return ""
        try:
            trial.loss = self._bound.measure(trial.second)
        except HeadraceError as error:
            return error.message
        if trial.loss.kl <= self._bound.max_kl:
            return ""
        return f"answers move by more than --max-kl {self._bound.max_kl:g} nats a token"

    def _duel(self, trial: Trial, until_s: float) -> Trial:
        self._trials.append(trial)
        trial.error = self._moves_too_far(trial)
        if trial.error:
            trial.verdict = Verdict.WORSE
        while trial.verdict is Verdict.OPEN:
            if self._spent_s + self._longest_s > until_s:
                self._is_out_of_time = True
                return trial
            number, self._num_pairs = self._num_pairs, self._num_pairs + 1
            try:
                pair = self._measure(trial.first, trial.second, number)
            except HeadraceError as error:
                trial.error, trial.verdict = error.message, Verdict.WORSE
                return trial
            trial.ratios.append(pair.ratio)
            self._spent_s += pair.seconds
            self._longest_s = max(self._longest_s, pair.seconds)
            trial.verdict = judge(trial.ratios, self._rules)
            if self._on_pair is not None:
                self._on_pair(trial)
        return trial
