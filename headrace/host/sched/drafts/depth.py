"""Chooses the drafts that rows check, so that a step gives the most tokens per second.

    tokens of a step    rows + chance of each draft that is checked
    cost of a step      `price`, in steps without drafts

Drafts are taken in the order of their chances over all rows, as many as make tokens over cost the largest.
Where the best is no better than nothing by `GAIN`, no row checks any: then the step is the plain one. What
begins and soon ends again must promise more the next time, so that nothing swings at the threshold. Drafts
that are not checked are compared with what is drawn all the same (the runner does), so a sequence whose
drafts begin to agree is noticed without paying for checks; it is asked for drafts ever more rarely, up to
every `RARELY`th row.
"""

from collections.abc import Sequence as Items
from functools import partial

from headrace.base.metrics.drafts import DraftReason
from headrace.base.request import Request
from headrace.base.step import RowResult, StepResult
from headrace.base.tasks import NO_SPECULATION, Speculation
from headrace.host.sched.drafts.price import StepPrice
from headrace.host.sched.drafts.reading import Reading
from headrace.host.sched.drafts.story import Choice, Story
from headrace.host.sched.drafts.track import COMMON_KEEP, Rates, Track
from headrace.host.sched.sequence import Sequence

AUTO_DEPTH = 10
"""Most drafts of a row when none are asked for."""
GAIN = 1.04
"""What checking must promise before it begins."""
LOSS = 0.985
"""Checking ends where it promises less: estimates waver by so much."""
LEAST_CHANCE = 0.05
"""Of a draft that is checked, however cheap checks seem: it could not give what checking must promise."""
MAX_GAIN = 1.25
GAIN_STEP = 0.03
"""So much more is asked for each time that checking ended soon, up to `MAX_GAIN`, and less when it lasted."""
SOON = 32
"""Steps."""
HOPE = 0.9
"""Steps with drafts are tried again as if they were so much cheaper: costs may have been misjudged.

After `RETRY` steps without, then after twice as many as if they were cheaper still, and so on.
"""
RETRY = 128
EXPLORE = 32
"""While drafts are checked, half as many more are every so many steps, for the same reason.

In the middle between, the number near the best that was measured least: curves have steps between points.
"""
EXPLORE_FIRST = (4, 8, 16)
"""And after so many steps."""
PATIENCE = 12
"""Rows without a gain before a sequence is asked more rarely."""
_COUNTS = (
    "drafts_proposed",
    "drafts_checked",
    "drafts_accepted",
    "draft_rows",
    "draft_step_seconds",
    "draft_plain_seconds",
)
"""The last two: seconds of steps with drafts, and what plain steps would have taken for their tokens."""
RARELY = 4
MAX_HELD = 32
"""Choices that hold while rows are read for; then what is known by now is weighed, whoever still reads."""


class Depth:
    """The controller of drafts. The scheduler is its only user.

    Args:
        offered: the engine's method and depth.
        room: most drafts of a step, all rows together.
    """

    def __init__(self, offered: Speculation = NO_SPECULATION, room: int = 0) -> None:
        self.is_on = offered.is_on
        self._offered = offered
        self._room = room
        self._price = StepPrice()
        self._common = Rates(COMMON_KEEP)
        self._reading = Reading()
        self._num_chosen = self._num_held = 0
        self._is_checking = False
        self._gain = GAIN
        self._choice = Choice()
        self._num_alike = 0
        """Choices since checking began or ended."""
        self.counts: dict[str, float] = dict.fromkeys(_COUNTS, 0.0)
        """`_COUNTS` since start, `drafts_accepted_N` by place, `draft_why_X` by `DraftReason`."""

    def open(self, seq: Sequence) -> None:
        """A sequence arrives: what it may ask for."""
        if not self.is_on:
            return
        wish = _wish_of(seq.request, self._offered)
        if wish.is_on:
            most = wish.depth or AUTO_DEPTH
            seq.track = Track(most=most, depth=wish.depth)
            seq.max_drafts = most
        else:
            seq.track = Track(most=0, depth=None, story=Story(_why_never(seq.request)))

    def choose(self, running: Items[Sequence], left: int) -> None:
        """Set `num_drafts` of those who run to what their next rows shall check.

        Args:
            running: the sequences, which hold as many drafts as `num_drafts` says.
            left: tokens of the step.
        """
        drafting = [s for s in running if s.num_drafts]
        if not drafting:
            return
        room = min(self._room, left - len(running))
        if any(s.pending for s in drafting):
            room = 0  # what they hold follows tokens that are not known yet
        fixed = [s for s in drafting if s.track is not None and s.track.depth is not None]
        for i, seq in enumerate(fixed):
            share = -(-room // (len(fixed) - i))
            seq.num_drafts = max(0, min(seq.num_drafts, _useful(seq), share))
            room -= seq.num_drafts
            if seq.track is not None:
                seq.track.story.decide(Choice(DraftReason.FIXED), seq.num_drafts)
        chosen = [s for s in drafting if s not in fixed]
        if self._offered.is_late:
            chosen = [s for s in chosen if self._may_read(s)]
        self._choose_best(chosen, len(running), room)

    def _may_read(self, seq: Sequence) -> bool:
        """Whether a sequence that a late drafter has not read to its end is worth reading."""
        track = seq.track
        if track is None:
            return False
        unread, left = len(seq.tokens) - track.num_read, _useful(seq)
        if self._reading.is_worth(unread, left, is_try=not self._is_checking):
            return True
        seq.num_drafts = 0
        track.story.decide(Choice(DraftReason.READING), 0)
        return False

    def learn(self, seq: Sequence, track: Track, num_checked: int, result: RowResult) -> None:
        """A row of a sequence is committed."""
        if not result.tokens:
            return
        num_checked -= result.num_unmade
        # those that are made late are made for their check
        self.counts["drafts_proposed"] += num_checked if self._offered.is_late else result.num_drafts
        if result.num_judged:
            track.rates.learn(result.num_judged, result.num_agreed)
            self._common.learn(result.num_judged, result.num_agreed)
        if num_checked:
            accepted = len(result.tokens) - 1
            length = len(seq.tokens)
            self._reading.learn(length - len(result.tokens) - track.num_read)
            track.num_read = length
            track.num_checked += num_checked
            track.num_accepted += accepted
            counts = self.counts
            counts["draft_rows"] += 1
            counts["drafts_checked"] += num_checked
            counts["drafts_accepted"] += accepted
            for i in range(accepted):
                name = f"drafts_accepted_{i}"
                counts[name] = counts.get(name, 0.0) + 1
        elif result.num_unmade:
            track.story.why = DraftReason.NOTHING_FOUND
        track.num_idle = 0 if num_checked else track.num_idle + 1
        idle = track.num_idle - PATIENCE
        is_often = idle <= 0 or track.depth is not None or result.num_unmade > 0
        every = 1 if is_often else min(RARELY, 2 + idle // 16)
        is_asked = seq.max_drafts > 0  # what this row was planned with
        seq.max_drafts = track.most if track.num_idle % every == 0 else 0
        accepted = len(result.tokens) - 1 if num_checked else 0
        why = f"draft_why_{track.story.commit(num_checked, accepted, is_asked=is_asked)}"
        self.counts[why] = self.counts.get(why, 0.0) + 1

    def observe(self, num_rows: int, num_drafts: int, result: StepResult) -> float:
        """A step that only decoded is over; returns the seconds that it would have taken without drafts."""
        num_unmade = sum(row.num_unmade for row in result.rows) if num_drafts else 0
        is_reading = num_unmade > 0 and self._offered.reads
        if not is_reading:
            num_drafts -= num_unmade  # nobody reads: what the row lacked could not be drafted
        self._reading.observe(result.seconds, result.draft_s, num_drafts, is_reading=is_reading)
        if is_reading:
            return result.seconds - result.draft_s  # the price of nothing that comes again
        self._price.observe(num_rows, num_drafts, result.seconds)
        if not num_drafts:
            return result.seconds
        rounds = sum(len(row.tokens) for row in result.rows) / num_rows
        plain_s = result.seconds / self._price.ratio(num_rows, num_drafts)
        self.counts["draft_step_seconds"] += result.seconds
        self.counts["draft_plain_seconds"] += rounds * plain_s
        return plain_s

    def _choose_best(self, seqs: list[Sequence], num_rows: int, room: int) -> None:
        found: list[tuple[float, int]] = []
        chances_of: list[list[float]] = []
        for i, seq in enumerate(seqs):
            count = min(seq.num_drafts, _useful(seq), room)
            chances = seq.track.chances(self._common, count) if count > 0 and seq.track is not None else []
            chances_of.append(chances)
            found += [(-chance, i) for chance in chances if chance >= LEAST_CHANCE]
            seq.num_drafts = 0
        found.sort()
        if self._reading.is_on and self._is_checking and self._num_held < MAX_HELD:
            self._num_held += 1
            count = min(len(found), max(room, 0), self._num_chosen)
        else:
            self._num_held = 0
            count = self._best(found, num_rows, room)
        self._num_chosen = count or self._num_chosen
        for _, i in found[:count]:
            seqs[i].num_drafts += 1
        for seq, chances in zip(seqs, chances_of, strict=True):
            if seq.track is not None:
                choice = self._choice if chances else Choice(DraftReason.NO_ROOM)
                seq.track.story.decide(choice, seq.num_drafts, chances)

    def _best(self, found: list[tuple[float, int]], num_rows: int, room: int) -> int:
        """How many of these drafts, the best first, make the most of a step."""
        most = min(len(found), max(room, 0))
        if not most or self._price.is_plain_due(num_rows):
            why = DraftReason.MEASURING if most else DraftReason.NO_GAIN if room > 0 else DraftReason.NO_ROOM
            self._choice = Choice(why)
            return 0
        ratios = self._price.ratios(num_rows, most)
        hope = self._hope()
        tokens, best, best_rate = float(num_rows), 0, 0.0
        for n in range(1, most + 1):
            tokens -= found[n - 1][0]
            rate = tokens / (ratios[n] * hope)
            if rate > best_rate:
                best, best_rate = n, rate
        self._turn(is_worth=best_rate / num_rows >= (LOSS if self._is_checking else self._gain))
        why = DraftReason.PAYS if self._is_checking else DraftReason.NO_GAIN
        self._choice = Choice(why, ratios[best], best_rate / num_rows)
        if not self._is_checking:
            return 0
        steps = self._num_alike
        if steps % EXPLORE == 0 if steps >= EXPLORE else steps in EXPLORE_FIRST:
            return min(most, best + best // 2 + 1)
        near = [n for n in _near(best) if n <= most]
        if steps <= EXPLORE or (steps - EXPLORE // 2) % EXPLORE or not near:
            return best
        return min(near, key=partial(self._price.count, num_rows))

    def _hope(self) -> float:
        """What the price of drafts is multiplied by."""
        rounds, rest = divmod(self._num_alike, RETRY)
        is_retry = not self._is_checking and not rest and rounds and not rounds & (rounds - 1)
        return HOPE ** rounds.bit_length() if is_retry else 1.0

    def _turn(self, *, is_worth: bool) -> None:
        """Begin or end checking, and remember how long it lasted."""
        self._num_alike += 1
        if is_worth == self._is_checking:
            if is_worth and self._num_alike == SOON:
                self._reading.repay()
            if self._num_alike % RETRY == 0:
                self._gain = max(GAIN, self._gain - GAIN_STEP)
            return
        if not is_worth:
            move = GAIN_STEP if self._num_alike <= SOON else -GAIN_STEP
            self._gain = min(MAX_GAIN, max(GAIN, self._gain + move))
        self._is_checking, self._num_alike = is_worth, 0


def _wish_of(request: Request, offered: Speculation) -> Speculation:
    if not request.is_draftable:
        return NO_SPECULATION
    asked = request.sampling.speculate
    return offered if asked is None else Speculation.parse(asked).within(offered)


def _why_never(request: Request) -> DraftReason:
    """Why a request is not drafted for."""
    if request.task is not None:
        return DraftReason.OTHER_TASK
    return DraftReason.OFF if request.sampling.structured is None else DraftReason.GRAMMAR


def _near(best: int) -> tuple[int, ...]:
    """Numbers of drafts that may be better than the one that seems best, the most telling first."""
    far = max(1, best // 4)
    found = best - 1, best + 1, 2 * best + 1, best - far, best + far
    return tuple(n for n in found if n > 0)


def _useful(seq: Sequence) -> int:
    """Drafts that a row can check before the answer reaches its limit."""
    return seq.max_positions - len(seq.tokens)
