"""What was decided about the drafts of one sequence, row by row, and why."""

from collections import Counter
from dataclasses import dataclass, field

from headrace.base.metrics.drafts import NEVER, DraftReason, DraftReport, in_order


@dataclass(slots=True)
class Choice:
    """What was found when drafts were last weighed against their price."""

    why: DraftReason = DraftReason.NOTHING_FOUND
    price: float | None = None
    gain: float | None = None


@dataclass(slots=True, eq=False)
class Story:
    """Counts of a sequence's rows, and the last decision."""

    why: DraftReason = DraftReason.NOTHING_FOUND
    """Of the row to come."""
    choice: Choice = field(default_factory=Choice)
    chances: tuple[float, ...] = ()
    depth: int = 0
    num_rows: int = 0
    accepted: list[int] = field(default_factory=list[int])
    rows: Counter[DraftReason] = field(default_factory=Counter[DraftReason])
    by_method: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Drafts checked and accepted."""

    def add(self, method: str, num_checked: int, num_accepted: int) -> None:
        """A row checked drafts of this method."""
        checked, accepted = self.by_method.get(method, (0, 0))
        self.by_method[method] = checked + num_checked, accepted + num_accepted

    def decide(self, choice: Choice, num_drafts: int, chances: list[float] | None = None) -> None:
        """So many drafts shall be checked of those with these chances (None: they were not weighed)."""
        is_left_out = choice.why is DraftReason.PAYS and not num_drafts  # those of others are likelier
        self.why = DraftReason.NO_GAIN if is_left_out else choice.why
        self.choice, self.depth = choice, num_drafts
        self.chances = self.chances if chances is None else tuple(chances)

    def commit(self, num_checked: int, num_accepted: int, *, is_asked: bool) -> DraftReason:
        """A row is over; `is_asked`: it was to draft for the next. Returns what decided about it."""
        why = self.why
        if num_checked:
            self.num_rows += 1
            self.accepted += [0] * (num_accepted - len(self.accepted))
            for i in range(num_accepted):
                self.accepted[i] += 1
        elif why in (DraftReason.PAYS, DraftReason.FIXED):
            why = DraftReason.NO_ROOM
        self.rows[why] += 1
        if self.why not in NEVER:
            self.why = DraftReason.NOTHING_FOUND if is_asked else DraftReason.SELDOM
        return why

    def report(self) -> DraftReport | None:
        """What there is to tell; None: no row came so far, so nothing was decided."""
        if not self.rows:
            return None
        return DraftReport(
            rows_by_reason=in_order(self.rows),
            num_rows=self.num_rows,
            accepted_by_place=tuple(self.accepted),
            by_method=tuple((name, *counts) for name, counts in self.by_method.items()),
            depth=self.depth,
            chances=self.chances,
            price=self.choice.price,
            gain=self.choice.gain,
        )
