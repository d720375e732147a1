"""What a decoding step costs with drafts in it: the seconds of runner and host, measured while running.

    seconds of a step = curve(rows)(drafts)

One curve for each number of rows; between measured points straight lines. What counts for a choice is the
ratio of two points of one curve, so a curve's other points follow when one of them moves (contexts grow).
"""

from bisect import bisect_left

FIRST_SLOPE = 0.2
"""Cost of a draft, in rows of a step without drafts, while nothing is measured."""
LEARN = 0.15
"""Weight of a step that was dearer than estimated; of the first few, their mean counts."""
LEARN_CHEAP = 0.3
"""Of one that was cheaper: what disturbs a step makes it longer."""
FOLLOW = 0.5
"""Share of a point's move that the other points make too, once it is settled.

A settled point mostly moves because all do: contexts grow, other programs take the cores for a while.
"""
FOLLOW_PLAIN = 1.0
"""Of the point without drafts, which is measured most: its moves alone must not make drafts look cheap."""
SETTLED = 8
"""Steps."""
STALE = 64
"""Steps with drafts after which a step without is due: all gains are held against it."""
OFTEN = 4
"""Fewer while few were measured, so many times their number: single steps vary by a tenth and more."""
MAX_JUMP = 1.4
"""A step counts as at most this many times dearer than estimated: the machine has hiccups."""
FIRST_JUMP = 3.0
"""So does the first step at a point whose neighbours are known; the estimate counts as another."""


class Curve:
    """Seconds of a step by drafts in it, for one number of rows."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._seconds: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._known: list[int] = []
        self._num_since_plain = STALE

    def is_plain_due(self, *, is_often: bool) -> bool:
        """Whether a step without drafts must be measured, first or again (`is_often`: see `OFTEN`)."""
        return self._num_since_plain >= (min(STALE, OFTEN * self.count(0)) if is_often else STALE)

    @property
    def slope_s(self) -> float | None:
        """Seconds of a draft, from the first to the last point; None: there are not two."""
        known, seconds = self._known, self._seconds
        if len(known) < 2:
            return None
        return max(0.0, (seconds[known[-1]] - seconds[known[0]]) / (known[-1] - known[0]))

    def count(self, num_drafts: int) -> int:
        """How often so many drafts were observed."""
        return self._counts.get(num_drafts, 0)

    def observe(self, num_drafts: int, seconds: float, slope_s: float | None = None) -> None:
        """Learn from one step; `slope_s` is that of another curve."""
        self._num_since_plain = self._num_since_plain + 1 if num_drafts else 0
        old = self._seconds.get(num_drafts)
        count = self._counts[num_drafts] = self._counts.get(num_drafts, 0) + 1
        if old is None:
            before = self.seconds(num_drafts, slope_s) if self._known else seconds
            self._seconds[num_drafts] = (before + min(seconds, FIRST_JUMP * before)) / 2
            self._known = sorted(self._seconds)
            return
        seen = min(seconds, old * MAX_JUMP)
        move = 1.0 + max(LEARN if seen > old else LEARN_CHEAP, 1.0 / count) * (seen / old - 1.0)
        share = 0.0 if count <= SETTLED else FOLLOW if num_drafts else FOLLOW_PLAIN
        others = 1.0 + share * (move - 1.0)
        for other in self._known:
            self._seconds[other] *= move if other == num_drafts else others

    def seconds(self, num_drafts: int, slope_s: float | None = None) -> float:
        """Estimate for any number of drafts, once a step was observed; `slope_s` is that of another curve."""
        known, seconds = self._known, self._seconds
        exact = seconds.get(num_drafts)
        if exact is not None:
            return exact
        at = bisect_left(known, num_drafts)
        if at in (0, len(known)):
            return self._beyond(num_drafts, slope_s)
        below, above = known[at - 1], known[at]
        share = (num_drafts - below) / (above - below)
        return seconds[below] + share * (seconds[above] - seconds[below])

    def _beyond(self, num_drafts: int, slope_s: float | None) -> float:
        """Outside of what is measured: on with the slope of this curve, of another, or the first one."""
        first, last = self._known[0], self._known[-1]
        slope = self.slope_s
        slope = slope_s if slope is None else slope
        if slope is None:
            slope = FIRST_SLOPE * self._seconds[first] / (self.num_rows + FIRST_SLOPE * first)
        near = first if num_drafts < first else last
        return max(self._seconds[near] + slope * (num_drafts - near), 0.1 * self._seconds[near])


class StepPrice:
    """The curves of all numbers of rows."""

    def __init__(self) -> None:
        self._curve_by_rows: dict[int, Curve] = {}
        self._slope_s: float | None = None
        """Of the curve that was observed last: what a draft costs hardly depends on the other rows."""

    def observe(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Learn from a step that only decodes."""
        if seconds <= 0.0:
            return
        curve = self._curve_by_rows.get(num_rows)
        if curve is None:
            curve = self._curve_by_rows[num_rows] = Curve(num_rows)
        curve.observe(num_drafts, seconds, self._slope_s)
        self._slope_s = self._slope_s if curve.slope_s is None else curve.slope_s

    def plain_s(self, num_rows: int) -> float:
        """Seconds of a step without drafts; 0: no step was observed."""
        curve = self._nearest(num_rows)
        return 0.0 if curve is None else curve.seconds(0, self._slope_s)

    def is_plain_due(self, num_rows: int, *, is_often: bool) -> bool:
        """Whether the next step of so many rows should have no drafts, so that their gain is known."""
        curve = self._nearest(num_rows)
        return curve is None or (curve.num_rows == num_rows and curve.is_plain_due(is_often=is_often))

    def ratios(self, num_rows: int, most: int) -> list[float]:
        """Cost of a step with 0, 1 .. `most` drafts, in steps without drafts: never less than of those."""
        curve = self._nearest(num_rows)
        if curve is None:
            return [1.0 + FIRST_SLOPE * n / num_rows for n in range(most + 1)]
        plain = curve.seconds(0, self._slope_s)
        return [max(1.0, curve.seconds(n, self._slope_s) / plain) for n in range(most + 1)]

    def count(self, num_rows: int, num_drafts: int) -> int:
        """How often such a step was observed."""
        curve = self._curve_by_rows.get(num_rows)
        return 0 if curve is None else curve.count(num_drafts)

    def ratio(self, num_rows: int, num_drafts: int) -> float:
        """The last one of `ratios`, once a step was observed."""
        curve = self._nearest(num_rows)
        if curve is None:
            return 1.0
        return max(1.0, curve.seconds(num_drafts, self._slope_s) / curve.seconds(0, self._slope_s))

    def _nearest(self, num_rows: int) -> Curve | None:
        curve = self._curve_by_rows.get(num_rows)
        if curve is None and self._curve_by_rows:
            near = min(self._curve_by_rows, key=lambda known: abs(known - num_rows))
            return self._curve_by_rows[near]
        return curve
