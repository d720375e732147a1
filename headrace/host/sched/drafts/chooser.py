"""Turns each sequence to one of its two kinds of drafts, where it has both (`ways`)."""

from collections import defaultdict
from collections.abc import Sequence as Items

from headrace.base.tasks import Speculation
from headrace.host.sched.drafts.price import StepPrice
from headrace.host.sched.drafts.reading import Reading
from headrace.host.sched.drafts.track import COMMON_KEEP, FIRST_RATE, Rates, Track
from headrace.host.sched.drafts.ways import Making, Savings, is_better, pays, worth
from headrace.host.sched.sequence import Sequence

STEADY = 2
"""Tokens that came since a drafter drafted last and that cost it about what none do."""
FIRST_READING = 0.1
"""Plain steps that a drafter takes to read a token, while nothing is measured."""
FIRST_TRIAL = 8.0
"""Rows whose first draft is wrong before a drafter is believed to be worse than at first."""
TRIAL = 4.0
"""The same when it is tried again."""
RIGHT = (1.0 - FIRST_RATE) / FIRST_RATE
"""So much of a row is made good by one whose first draft is right: what is as good as at first stays."""
TRY = 128
"""Choices without a drafter after which it is tried again; then after twice as many, up to `MAX_TRY`."""
MAX_TRY = 4096
LASTING = 32
"""Choices of a drafter, one after the other, after which what it read was not in vain."""


class Chooser:
    """What is known of both kinds of drafts, and which of them each sequence checks.

    Args:
        offered: the engine's methods.
        price: of steps, without what making drafts takes where there are two kinds.
        reading: of what a drafter reads.
    """

    def __init__(self, offered: Speculation, price: StepPrice, reading: Reading) -> None:
        self.has_both = bool(offered.beside)
        self.num_turns = 0
        """Times that a sequence went from one kind to the other, since start."""
        self._late_name = offered.method if offered.is_late else ""
        self._price = price
        self._reading = reading
        self._common: defaultdict[str, Rates] = defaultdict(lambda: Rates(COMMON_KEEP))
        self._savings = Savings()
        self._making = Making()
        self._num_without = self._num_with = 0
        """Choices since a drafter was chosen, and since none was."""
        self._patience, self._trial, self._is_retry = TRY, FIRST_TRIAL, False
        self._planned = (0, 0)
        """Rows that the drafter shall draft for in the next step, and tokens that it has to read for them."""

    @property
    def is_trying(self) -> bool:
        """Whether a drafter is tried: how many tokens it gives counts, not what its drafts gained before."""
        return self.has_both and self._trial > 0

    def method(self, track: Track, *, is_late: bool) -> str:
        """Whose drafts a row of either kind checks."""
        return self._late_name if is_late else track.held_by

    def chances(self, track: Track, count: int, *, is_late: bool) -> list[float]:
        """Those of the drafts of one kind."""
        method = self.method(track, is_late=is_late)
        found = track.chances(self._common[method], count, method)
        if is_late and self.is_trying:
            return [max(chance, FIRST_RATE**i) for i, chance in enumerate(found, 1)]
        return found

    def judge(self, track: Track, method: str, num_judged: int, num_agreed: int) -> None:
        """Drafts of a method were compared with what was drawn."""
        if num_judged:
            track.of(method).learn(num_judged, num_agreed)
            self._common[method].learn(num_judged, num_agreed)
            if method == self._late_name and self.is_trying:
                self._trial = min(FIRST_TRIAL, self._trial + (RIGHT if num_agreed else -1.0))

    def learn(self, track: Track, num_tokens: int) -> None:
        """A row of a sequence with both kinds gave so many tokens."""
        self._savings.learn(num_tokens, track.savings.promise)
        track.savings.learn(num_tokens, track.savings.promise)

    def observe(self, num_late: int, draft_s: float) -> float:
        """A step made the drafts that it should; returns the seconds that are no part of its price."""
        rows, unread = self._planned
        if not (self.has_both and num_late and rows):
            return 0.0
        plain_s = self._plain_s(rows)
        make_s = num_late * self._making.each_s(rows, plain_s)
        if unread <= STEADY * rows:
            self._making.observe(rows, num_late, draft_s)
        elif self._making.is_known:
            self._reading.catch_up(draft_s - make_s)
        else:  # both are in it, and neither is known
            make_s *= draft_s / (make_s + FIRST_READING * plain_s * unread)
            self._making.observe(rows, num_late, make_s)
            self._reading.catch_up(draft_s - make_s)
        return draft_s

    def read(self, num_tokens: int) -> None:
        """A drafter read so many tokens of a sequence, all that it had not, and drafted for it."""
        if num_tokens > STEADY or not self.has_both:
            self._reading.learn(num_tokens)

    def added(self, num_rows: int, num_late: int) -> float:
        """Plain steps of `num_rows` rows that making the drafts of all of them adds to their step."""
        if not (self.has_both and num_late):
            return 0.0
        plain_s = self._plain_s(num_rows)
        return num_late * self._making.each_s(self._planned[0] or 1, plain_s) / plain_s

    def turn(self, seqs: Items[Sequence], num_rows: int, room: int) -> None:
        """Set `is_late` of sequences, the kind of their drafts.

        Args:
            seqs: those that have drafts.
            num_rows: of the step.
            room: drafts that it may check.
        """
        for seq in seqs:
            seq.is_late = seq.num_late > 0 and not seq.num_held
        both = [seq for seq in seqs if seq.track is not None and seq.track.has_both]
        if both and room > 0:
            self._turn(both, num_rows, max(1, room // num_rows))

    def plan(self, seqs: Items[Sequence]) -> None:
        """So many drafts are chosen for these sequences as `num_drafts` says."""
        late = [seq for seq in seqs if seq.is_late and seq.num_drafts]
        self._planned = len(late), sum(_unread(seq) for seq in late)

    def _turn(self, seqs: list[Sequence], num_rows: int, most: int) -> None:
        most = min(most, max((s.track.most for s in seqs if s.track is not None), default=0))
        steps = range(most + 1)
        ratios = self._price.ratios(num_rows, num_rows * most)
        lookup = [ratios[num_rows * n] for n in steps]
        plain_s = self._plain_s(num_rows)
        each = self._making.each_s(num_rows, plain_s) / plain_s
        late = [cost + num_rows * n * each for n, cost in zip(steps, lookup, strict=True)]
        for seq in seqs:
            track = seq.track
            if track is not None:
                seq.is_late = self._is_late(seq, track, lookup, late)
                self.num_turns += seq.is_late != track.is_late
                track.is_late = seq.is_late
        self._count(any(seq.is_late for seq in seqs))

    def _is_late(self, seq: Sequence, track: Track, lookup: list[float], late: list[float]) -> bool:
        is_fixed, left = track.depth is not None, seq.max_positions - len(seq.tokens)
        found: list[float] = []
        for is_late, count, costs in ((False, seq.num_held, lookup), (True, seq.num_late, late)):
            chances = self.chances(track, min(count, left), is_late=is_late)
            found.append(worth(chances, costs, is_fixed=is_fixed and count > 0))
        by_lookup, by_drafter = found
        track.savings.promise = max(0.0, 1.0 / by_lookup - 1.0 / by_drafter)
        if not (seq.num_late and is_better(by_drafter, by_lookup, is_late=track.is_late)):
            return False
        return track.is_late or self._is_read(seq, track, left)

    def _is_read(self, seq: Sequence, track: Track, left: int) -> bool:
        """Whether what a drafter has to read of a sequence to begin is worth it."""
        plain_s = self._reading.plain_s or self._price.plain_s(1)
        is_known = self._reading.is_known and plain_s > 0.0
        each = self._reading.cost_s(1) / plain_s if is_known else FIRST_READING
        read = each * _unread(seq)
        if self.is_trying and self._is_retry:
            return self._reading.may_try(read * plain_s)
        return pays(read, track.savings.each(self._savings, each), seq.num_output, left)

    def _count(self, is_any_late: bool) -> None:
        if not is_any_late:
            self._num_without, self._num_with = self._num_without + 1, 0
            if self._num_without >= self._patience:
                self._patience = min(MAX_TRY, 2 * self._patience)
                self._num_without, self._trial, self._is_retry = 0, TRIAL, True
            return
        self._num_without, self._num_with = 0, self._num_with + 1
        if self._num_with == LASTING:
            self._patience = TRY
            self._reading.repay()

    def _plain_s(self, num_rows: int) -> float:
        return self._price.plain_s(num_rows) or 1.0


def _unread(seq: Sequence) -> int:
    return 0 if seq.track is None else len(seq.tokens) - seq.track.num_read
