"""Turns each sequence to one of its two kinds of drafts, where it has both (`ways`)."""

from collections import defaultdict
from collections.abc import Sequence as Items

from headrace.base.step import StepResult
from headrace.base.tasks import Speculation
from headrace.host.sched.drafts.price import StepPrice
from headrace.host.sched.drafts.reading import WORTH, Reading
from headrace.host.sched.drafts.track import COMMON_KEEP, FIRST_RATE, Rates, Track
from headrace.host.sched.drafts.trial import Trial
from headrace.host.sched.drafts.ways import Making, Savings, is_better, passes_of, pays, worth
from headrace.host.sched.sequence import Sequence

STEADY = 2
"""Tokens that came since a drafter drafted last and that cost it about what none do."""
FIRST_READING = 0.1
"""Plain steps that a drafter takes to read a token, while nothing is measured."""
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
        self._reads = offered.reads
        self._price = price
        self._reading = reading
        self._common: defaultdict[str, Rates] = defaultdict(lambda: Rates(COMMON_KEEP))
        self._savings = Savings()
        self._making = Making()
        self._num_without = self._num_with = 0
        """Choices since a drafter was chosen, and since none was."""
        self._patience, self._has_turned = TRY, False
        self._trial = Trial()
        self._planned: dict[int, int] = {}
        """Drafts that the drafter shall make in the next step, by slot."""
        self._unread = 0
        """Tokens that it has to read for them."""

    @property
    def is_trying(self) -> bool:
        """Whether a drafter is tried: how many tokens it gives counts, not what its drafts gained before."""
        return self.has_both and self._trial.is_on

    @property
    def is_retrying(self) -> bool:
        """The same of one that did not prove itself before: reading for it is for a try."""
        return self.is_trying and self._trial.is_retry

    def method(self, track: Track, *, is_late: bool) -> str:
        """Whose drafts a row of either kind checks."""
        return self._late_name if is_late else track.held_by

    def chances(self, track: Track, count: int, *, is_late: bool) -> list[float]:
        """Those of the drafts of one kind."""
        method = self.method(track, is_late=is_late)
        found = track.chances(self._common[method], count, method)
        if is_late and self.has_both and self._trial.favours(track):
            return [max(chance, FIRST_RATE**i) for i, chance in enumerate(found, 1)]
        return found

    def judge(self, track: Track, method: str, num_judged: int, num_agreed: int) -> None:
        """Drafts of a method were compared with what was drawn."""
        if num_judged:
            track.of(method).learn(num_judged, num_agreed)
            self._common[method].learn(num_judged, num_agreed)
            if method == self._late_name:
                self._trial.judge(track, is_right=num_agreed > 0)

    def learn(self, track: Track, num_tokens: int) -> None:
        """A row of a sequence with both kinds gave so many tokens."""
        self._savings.learn(num_tokens, track.savings.promise)
        track.savings.learn(num_tokens, track.savings.promise)

    def observe(self, num_late: int, result: StepResult) -> float:
        """A step made so many late drafts; returns the seconds that are no part of its price.

        What drafting takes where no row checks late drafts is none either: steps of any kind pay for it.
        """
        if not self.has_both:
            return 0.0
        planned, unread, draft_s = self._planned, self._unread, result.draft_s
        counts = [planned[row.slot] - row.num_unmade for row in result.rows if row.slot in planned]
        if not num_late or sum(counts) != num_late:
            return draft_s  # the step had no room for all: which were made is not known
        passes, plain_s = passes_of(counts), self._plain_s(len(result.rows))
        make_s = sum(self._making.pass_s(rows, plain_s) for rows in passes)
        if unread <= STEADY * len(counts):
            self._making.observe(passes, draft_s)
        elif self._making.is_known:
            self._reading.catch_up(draft_s - make_s)
        else:  # both are in it, and neither is known
            make_s *= draft_s / (make_s + FIRST_READING * plain_s * unread)
            self._making.observe(passes, make_s)
            self._reading.catch_up(draft_s - make_s)
        return draft_s

    def read(self, num_tokens: int) -> None:
        """A drafter read so many tokens of a sequence, all that it had not, and drafted for it."""
        if self._reads and (num_tokens > STEADY or not self.has_both):
            self._reading.learn(num_tokens)

    def makings(self, num_rows: int, most: int) -> list[float]:
        """Cost of a drafter's pass for 0, 1 .. `most` rows, in plain steps of `num_rows` rows.

        Nothing where there is one kind of drafts: then it is part of the price of steps.
        """
        if not self.has_both:
            return [0.0] * (most + 1)
        plain_s = self._plain_s(num_rows)
        return [self._making.pass_s(n, plain_s) / plain_s for n in range(most + 1)]

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
        self._planned = {seq.slot: seq.num_drafts for seq in late if seq.slot is not None}
        self._unread = sum(self._unread_of(seq) for seq in late)
        if self._has_turned:
            self._count(bool(late))
            self._has_turned = False

    def _turn(self, seqs: list[Sequence], num_rows: int, most: int) -> None:
        most = min(most, max((s.track.most for s in seqs if s.track is not None), default=0))
        ratios = self._price.ratios(num_rows, num_rows * most)
        lookup = [ratios[num_rows * n] for n in range(most + 1)]
        num_able = sum(seq.num_late > 0 for seq in seqs)
        late = self._late(seqs, num_rows, lookup, num_able)
        if 0 < sum(late) < num_able:  # fewer share a pass of the drafter
            late = self._late(seqs, num_rows, lookup, sum(late))
        for seq, is_late in zip(seqs, late, strict=True):
            if seq.track is not None:
                self.num_turns += is_late != seq.track.is_late
                seq.is_late = seq.track.is_late = is_late
        self._has_turned = True

    def _late(self, seqs: list[Sequence], num_rows: int, lookup: list[float], num_late: int) -> list[bool]:
        """Which rows a drafter is better for that drafts for `num_late`; `lookup`: costs of checks."""
        plain_s = self._plain_s(num_rows)
        each = self._making.pass_s(num_late, plain_s) / plain_s * num_rows / max(1, num_late)
        late = [cost + n * each for n, cost in enumerate(lookup)]
        return [s.track is not None and self._is_late(s, s.track, lookup, late) for s in seqs]

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
        return track.is_late or not self._reads or self._is_read(seq, track, left)

    def _is_read(self, seq: Sequence, track: Track, left: int) -> bool:
        """Whether what a drafter has to read of a sequence to begin is worth it."""
        plain_s = self._reading.plain_s or self._price.plain_s(1)
        is_known = self._reading.is_known and plain_s > 0.0
        each = self._reading.cost_s(1) / plain_s if is_known else FIRST_READING
        read = each * self._unread_of(seq)
        if self.is_retrying:
            return read <= WORTH * left and self._reading.may_try(read * plain_s)
        return pays(read, track.savings.each(self._savings, each), seq.num_output, left)

    def _unread_of(self, seq: Sequence) -> int:
        """Tokens that the drafter has to read before it drafts."""
        return len(seq.tokens) - seq.track.num_read if self._reads and seq.track is not None else 0

    def _count(self, is_any_late: bool) -> None:
        if not is_any_late:
            self._num_without, self._num_with = self._num_without + 1, 0
            if self._num_without >= self._patience:
                self._patience, self._num_without = min(MAX_TRY, 2 * self._patience), 0
                self._trial.again()
            return
        self._num_without, self._num_with = 0, self._num_with + 1
        if self._num_with % LASTING == 0:
            self._patience = TRY
            self._trial.end(is_proven=True)
            self._reading.repay()

    def _plain_s(self, num_rows: int) -> float:
        return self._price.plain_s(num_rows) or 1.0
