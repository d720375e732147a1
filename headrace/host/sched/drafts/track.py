"""How often drafts of one sequence agree with what is drawn, by method and by their place in the row."""

from dataclasses import dataclass, field

from headrace.base.tasks import MAX_DEPTH
from headrace.host.sched.drafts.story import Story
from headrace.host.sched.drafts.ways import Savings

KEEP = 0.9
"""What is left of a count with each new one: about the last ten drafts of a place count."""
COMMON_KEEP = 0.98
TRUST = 4.0
"""The common rate counts as this many drafts of the sequence itself."""
DOUBT = 0.1
"""A draft after one that disagreed was not tried; where drafting goes wrong it would have disagreed too."""
FIRST_RATE = 0.6
"""Of drafts of which nothing is known."""


@dataclass(slots=True)
class Rates:
    """Decayed counts of drafts by place, each given that all before it agreed."""

    keep: float
    tried: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)
    agreed: list[float] = field(default_factory=lambda: [0.0] * MAX_DEPTH)

    def learn(self, num_judged: int, num_agreed: int) -> None:
        """Of `num_judged` drafts the first `num_agreed` agreed; of those after the next little is known."""
        keep = self.keep
        for i in range(MAX_DEPTH if num_agreed < num_judged else min(num_judged, MAX_DEPTH)):
            self.tried[i] = self.tried[i] * keep + (1.0 if i <= num_agreed else DOUBT)
            self.agreed[i] = self.agreed[i] * keep + (i < num_agreed)


@dataclass(slots=True, eq=False)
class Track:
    """What is known of the drafts of one sequence."""

    most: int
    """Drafts that it may ask for; 0: none."""
    depth: int | None
    """Drafts of every row; None: chosen."""
    has_both: bool = False
    """It has drafts of lookups and of a drafter that computes."""
    by_method: dict[str, Rates] = field(default_factory=dict[str, Rates])
    held_by: str = ""
    """The method that made the drafts that its slot holds."""
    num_checked: int = 0
    num_accepted: int = 0
    num_idle: int = 0
    """Rows since it was last worth while to check drafts."""
    num_read: int = 0
    """Tokens of the sequence that a late drafter has read."""
    is_late: bool = False
    """Of both kinds, what a drafter computes was chosen last."""
    savings: Savings = field(default_factory=Savings)
    story: Story = field(default_factory=Story)

    def leave(self) -> None:
        """The sequence leaves its slot, and with it goes what a drafter read of it."""
        self.num_read, self.is_late = 0, False

    def of(self, method: str) -> Rates:
        """The rates of a method's drafts."""
        found = self.by_method.get(method)
        if found is None:
            found = self.by_method[method] = Rates(KEEP)
        return found

    def chances(self, common: Rates, count: int, method: str) -> list[float]:
        """The chance that draft 1, 2 .. `count` is accepted: that it and all before it agree."""
        found: list[float] = []
        all_so_far, before = 1.0, FIRST_RATE
        mine = self.of(method)
        for i in range(min(count, MAX_DEPTH)):
            shared = (common.agreed[i] + TRUST * before) / (common.tried[i] + TRUST)
            rate = (mine.agreed[i] + TRUST * shared) / (mine.tried[i] + TRUST)
            before = rate  # of a place that was never tried the place before says most
            all_so_far *= rate
            found.append(all_so_far)
        return found
