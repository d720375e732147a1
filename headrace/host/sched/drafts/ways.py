"""Which drafts a row checks where it can have two kinds: a lookup's, or those that a drafter computes.

    worth of a kind    tokens of a row over the cost of its step, in plain steps, at the best number of drafts

A lookup's drafts are there and cost their check. A drafter's have to be made (`Making`), and it has not read
what was drawn since it drafted last, or not even the prompt. So it is turned to where it is worth more, and
where that pays for the reading: by what it would have saved of the tokens so far, less what reading behind
the lookup would have taken (`Savings`). Both kinds are estimated for every row, so both sums are known
whichever kind was checked. What was turned to is kept until the other is better by `SWITCH`.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

SWITCH = 1.05
"""The other kind of drafts must be worth so much more."""
FIRST_MAKING = 0.2
"""Cost of a pass that makes drafts, in plain steps, while nothing is measured."""
LEARN = 0.2
MAX_JUMP = 2.0
"""Drafts count as at most this many times dearer than estimated: the machine has hiccups."""
SURE = 0.75
"""Of what a drafter promises to save of an answer, what reading for it may take."""
FORESIGHT = 64
"""Tokens that an answer is expected to go on for, and `STRETCH` more for each that it has."""
STRETCH = 4
KEEP = 0.98
"""What is left of savings with each token: about the last fifty count."""
COMMON_WEIGHT = 3.0
"""What all sequences saved counts as so many tokens of the sequence itself."""


class Making:
    """Seconds of a drafter's passes, by rows that share one: each gives every row its next draft."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    @property
    def is_known(self) -> bool:
        """Whether any drafts were made so far."""
        return bool(self._seconds)

    def observe(self, passes: Items[int], seconds: float) -> None:
        """Passes of so many rows each took so many seconds together.

        All are wrong by the same factor: those of numbers of rows that were not seen change by all of it.
        """
        if not passes or seconds <= 0.0:
            return
        before_s = {rows: self.pass_s(rows, seconds) for rows in set(passes)}
        error = seconds / sum(before_s[rows] for rows in passes)
        for rows, pass_s in before_s.items():
            is_seen = rows in self._seconds
            self._seconds[rows] = pass_s * (1.0 + LEARN * (min(error, MAX_JUMP) - 1.0) if is_seen else error)

    def pass_s(self, num_rows: int, plain_s: float) -> float:
        """Of a pass; one of a number of rows that was not seen takes what the nearest does.

        Args:
            num_rows: that draft together.
            plain_s: seconds of a step without drafts, of which the first estimate is a part.
        """
        if not num_rows:
            return 0.0
        if not self._seconds:
            return FIRST_MAKING * plain_s
        near = min(self._seconds, key=lambda known: abs(known - num_rows))
        return self._seconds[near]


def passes_of(counts: Items[int]) -> list[int]:
    """Rows of the first, second .. pass that make so many drafts of each row."""
    return [sum(count > i for count in counts) for i in range(max(counts, default=0))]


@dataclass(slots=True)
class Savings:
    """What a drafter that is always ready would have saved of the last tokens, in plain steps."""

    tokens: float = 0.0
    saved: float = 0.0
    looked: float = 0.0
    """Tokens of rows for which the lookup was better: the drafter would have had to read them."""
    promise: float = 0.0
    """What the drafter promises to save of each token of the row to come."""

    def learn(self, num_tokens: int, saved: float) -> None:
        """A row gave so many tokens; `saved`: plain steps that the drafter saves of each, 0: none."""
        kept = KEEP**num_tokens
        self.tokens = self.tokens * kept + num_tokens
        self.saved = self.saved * kept + num_tokens * saved
        self.looked = self.looked * kept + num_tokens * (saved == 0.0)

    def each(self, common: "Savings", read: float) -> float:
        """Plain steps saved of a token; `read`: those that reading one takes."""
        known = COMMON_WEIGHT * common._mean(read) + self.saved - read * self.looked
        return known / (COMMON_WEIGHT + self.tokens)

    def _mean(self, read: float) -> float:
        return (self.saved - read * self.looked) / self.tokens if self.tokens else 0.0


def pays(reading: float, each: float, num_output: int, left: int) -> bool:
    """Whether a drafter that saves `each` of a token is worth what it would have to read, in plain steps."""
    return reading <= SURE * each * min(left, FORESIGHT + STRETCH * num_output) and each > 0.0


def worth(chances: Items[float], costs: Items[float], *, is_fixed: bool = False) -> float:
    """Tokens of a row over the cost of its step.

    Args:
        chances: of its drafts.
        costs: of a step with 0, 1, 2 .. drafts of each row, in plain steps.
        is_fixed: all drafts are checked, not as many as pay.
    """
    tokens, best = 1.0, 1.0
    for chance, cost in zip(chances, costs[1:], strict=False):
        tokens += chance
        best = tokens / cost if is_fixed else max(best, tokens / cost)
    return best


def is_better(late: float, lookup: float, *, is_late: bool) -> bool:
    """Whether to check a drafter's drafts, by what both are worth and what was checked before."""
    return late > 1.0 and late * SWITCH >= lookup if is_late else late >= lookup * SWITCH
