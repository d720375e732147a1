"""Coefficients of a linear model that follow what is observed: recursive least squares on relative errors.

The state is that of a Kalman filter for coefficients that drift (Ljung, System Identification, 2nd ed., ch.
11): each observation pulls the coefficients that it depends on, by how little is known of them. What has not
been excited keeps its first guess. Plain numbers; an update of five coefficients takes some microseconds.
"""

from collections.abc import Sequence

_DOUBT = 0.7
_NOISE = 0.06
"""Relative spread of the time of equal steps."""
_OUTLIER = 3.0
"""Surprises of more than so many standard deviations count as that many: hiccups of the machine."""
_MOST_IN_A_ROW = 3
"""So many outliers to one side are no hiccups: the coefficients are wrong, and all doubt is put back."""
_LEAST = 0.02
"""A coefficient stays above this share of its first guess: no part of a step takes negative time."""


class Fit:
    """Coefficients c of seconds = c . x.

    Args:
        guess: first coefficients, positive.
        doubt: relative standard deviation of each guess.
        drift: relative standard deviation of a coefficient's change per observation.
    """

    def __init__(
        self, guess: Sequence[float], *, doubt: Sequence[float] | None = None, drift: float = 0.006
    ) -> None:
        self.coefficients = list(guess)
        self.num_seen = 0
        self._num_outliers = 0
        """In a row; negative when the steps were faster than predicted."""
        self._least = [_LEAST * g for g in guess]
        doubts = [_DOUBT] * len(guess) if doubt is None else doubt
        self._most_variance = [(d * g) ** 2 for d, g in zip(doubts, guess, strict=True)]
        self._drift = drift * drift
        self._covariance: list[list[float]] = []
        self._doubt()

    def predict(self, x: Sequence[float]) -> float:
        """Seconds."""
        return sum(c * v for c, v in zip(self.coefficients, x, strict=True))

    def _doubt(self) -> None:
        """Know nothing but the coefficients."""
        size = len(self.coefficients)
        self._covariance = [[0.0] * size for _ in range(size)]
        for i, variance in enumerate(self._most_variance):
            self._covariance[i][i] = variance

    def _note(self, surprise: float, most: float) -> None:
        """Count outliers to one side."""
        if abs(surprise) <= most:
            self._num_outliers = 0
            return
        side = 1 if surprise > 0 else -1
        self._num_outliers = self._num_outliers + side if self._num_outliers * side > 0 else side
        if abs(self._num_outliers) >= _MOST_IN_A_ROW:
            self._num_outliers = 0
            self._doubt()

    def observe(self, x: Sequence[float], seconds: float) -> None:
        """Learn from one observation, which took `seconds` > 0."""
        scaled = [v / seconds for v in x]
        spread = [sum(p * v for p, v in zip(row, scaled, strict=True)) for row in self._covariance]
        variance = sum(v * s for v, s in zip(scaled, spread, strict=True)) + _NOISE * _NOISE
        surprise = 1.0 - self.predict(scaled)
        most = _OUTLIER * variance**0.5
        self._note(surprise, most)
        covariance = self._covariance
        surprise = min(most, max(-most, surprise))
        coefficients, drift = self.coefficients, self._drift
        for i, s in enumerate(spread):
            gain = s / variance
            coefficients[i] = max(self._least[i], coefficients[i] + gain * surprise)
            row = covariance[i]
            for j, other in enumerate(spread):
                row[j] -= gain * other
            row[i] = min(self._most_variance[i], row[i] + drift * coefficients[i] ** 2)
        self.num_seen += 1
