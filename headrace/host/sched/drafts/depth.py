"""Chooses the drafts that rows check, so that a step gives the most tokens per second.

    tokens of a step    rows + chance of each draft that is checked
    cost of a step      `price`, in steps without drafts

Drafts are taken in the order of their chances over all rows, as many as make tokens over cost the largest.
Where the best is no better than nothing by `GAIN`, no row checks any: then the step is the plain one. What
begins and soon ends again must promise more the next time, so that nothing swings at the threshold. A
lookup's drafts that are not checked are compared with what is drawn all the same (the runner does), so a
sequence whose drafts begin to agree is noticed without paying for checks; it is asked for drafts ever more
rarely, up to every `RARELY`th row (`RARELY_LATE`).
"""

from collections import defaultdict
from collections.abc import Sequence as Items
from functools import partial
from typing import NamedTuple

from headrace.base.metrics.drafts import DraftReason
from headrace.base.request import Request
from headrace.base.step import Row, RowResult, StepResult
from headrace.base.tasks import NO_SPECULATION, Speculation
from headrace.host.sched.drafts.chooser import Chooser
from headrace.host.sched.drafts.price import StepPrice
from headrace.host.sched.drafts.reading import Reading
from headrace.host.sched.drafts.story import Choice, Story
from headrace.host.sched.drafts.track import Track
from headrace.host.sched.sequence import Sequence

AUTO_DEPTH = 10
"""Most drafts of a row when none are asked for."""
GAIN = 1.04
"""What checking must promise before it begins."""
LOSS = 0.985
"""Checking a drafter's ends where it promises less: estimates waver, and its rates are known only meanwhile.

A lookup's are always known, so checking them ends where it promises nothing.
"""
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
RARELY = 8
"""Rows of a sequence for one that asks for lookups that gain nothing: asking takes the host time, too."""
RARELY_LATE = 4
"""Where the engine has a drafter that computes, which is tried by being asked."""
MAX_HELD = 32
"""Choices that hold while rows are read for; then what is known by now is weighed, whoever still reads."""
Draft = tuple[float, int]
"""Its chance, negated, so that the likeliest sorts first; and the index of its sequence."""


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
        self._reading = Reading()
        self.ways = Chooser(offered, self._price, self._reading)
        self._num_chosen = self._num_held = 0
        self._is_checking = False
        self._gain = GAIN
        self._choice = Choice()
        self._plain_share = 1.0
        """The runner's seconds of the last step without drafts, over its price."""
        self._num_alike = 0
        """Choices since checking began or ended."""
        self.counts: defaultdict[str, float] = defaultdict(float, dict.fromkeys(_COUNTS, 0.0))
        """`_COUNTS` since start; `drafts_accepted_N` by place, `drafts_by_METHOD_X`, `draft_why_X`."""

    def open(self, seq: Sequence) -> None:
        """A sequence arrives: what it may ask for."""
        if not self.is_on:
            return
        wish = seq.request.drafts_within(self._offered)
        if wish.is_on:
            most = wish.depth or AUTO_DEPTH
            seq.track = Track(most=most, depth=wish.depth, has_both=bool(wish.beside))
            seq.max_drafts = most
        else:
            seq.track = Track(most=0, depth=None, story=Story(_why_never(seq.request)))

    def choose(self, running: Items[Sequence], left: int) -> None:
        """Set `num_drafts` of those who run to what their next rows shall check.

        Args:
            running: the sequences, which can check as many drafts as `num_held` or `num_late` say.
            left: tokens of the step.
        """
        drafting = [s for s in running if s.num_held or s.num_late]
        if not drafting:
            return
        room = min(self._room, left - len(running))
        if any(s.pending for s in drafting):
            room = 0  # what they hold follows tokens that are not known yet
        self.ways.turn(drafting, len(running), max(room, 0))
        fixed: list[Sequence] = []
        free: list[Sequence] = []
        for seq in drafting:
            seq.num_drafts = seq.num_late if seq.is_late else seq.num_held
            (free if seq.track is None or seq.track.depth is None else fixed).append(seq)
        for i, seq in enumerate(fixed):
            share = -(-room // (len(fixed) - i))
            seq.num_drafts = max(0, min(seq.num_drafts, _useful(seq), share))
            room -= seq.num_drafts
            if seq.track is not None:
                seq.track.story.decide(Choice(DraftReason.FIXED), seq.num_drafts)
        self._choose_best([s for s in free if not s.is_late or self._may_read(s)], len(running), room)
        self.ways.plan(drafting)

    def _may_read(self, seq: Sequence) -> bool:
        """Whether a sequence that a late drafter has not read to its end may check drafts.

        Where it is not worth reading it turns to its lookup, or, without one, checks none.
        """
        track = seq.track
        if track is None:
            return False
        is_try = self._hope() < 1.0 or self.ways.is_retrying
        if track.has_both and (self._reading.is_on or not is_try):
            return True  # weighed before
        unread, left = len(seq.tokens) - track.num_read, _useful(seq)
        if self._reading.is_worth(unread, left, is_try=not self._is_checking):
            return True
        if track.has_both:
            seq.is_late, seq.num_drafts = False, seq.num_held
            return True
        seq.num_drafts = 0
        track.story.decide(Choice(DraftReason.READING), 0)
        return False

    def learn(self, seq: Sequence, track: Track, row: Row, result: RowResult) -> None:
        """A row of a sequence is committed."""
        if not result.tokens:
            return
        num_checked, is_late = row.num_drafts - result.num_unmade, row.is_late
        # those that are made late are made for their check
        self.counts["drafts_proposed"] += result.num_drafts + (num_checked if is_late else 0)
        ways, accepted = self.ways, len(result.tokens) - 1 if num_checked else 0
        ways.judge(track, track.held_by, result.num_judged, result.num_agreed)
        if is_late:
            method = ways.method(track, is_late=True)
            ways.judge(track, method, min(num_checked, accepted + 1), accepted)
        if track.has_both:
            ways.learn(track, len(result.tokens))
        if num_checked:
            self._count(track, num_checked, accepted, is_late=is_late)
            if is_late:
                length = len(seq.tokens)
                ways.read(length - len(result.tokens) - track.num_read)
                track.num_read = length
        elif result.num_unmade:
            track.story.why = DraftReason.NOTHING_FOUND
        track.held_by = result.drafted.by
        track.num_idle = 0 if num_checked else track.num_idle + 1
        idle = track.num_idle - PATIENCE
        is_often = idle <= 0 or track.depth is not None or result.num_unmade > 0
        every = 1 if is_often else min(RARELY_LATE if self._offered.is_late else RARELY, 2 + idle // 16)
        is_asked = seq.max_drafts > 0  # what this row was planned with
        seq.max_drafts = track.most if track.num_idle % every == 0 else 0
        self.counts[f"draft_why_{track.story.commit(num_checked, accepted, is_asked=is_asked)}"] += 1

    def _count(self, track: Track, num_checked: int, num_accepted: int, *, is_late: bool) -> None:
        """A row checked drafts."""
        track.num_checked += num_checked
        track.num_accepted += num_accepted
        method = self.ways.method(track, is_late=is_late)
        track.story.add(method, num_checked, num_accepted)
        _count_row(self.counts, method, num_checked, num_accepted)

    def observe(
        self, num_rows: int, planned: tuple[int, int], result: StepResult, host_s: float = 0.0
    ) -> float:
        """A step that only decoded is over; returns the runner's seconds that one without drafts takes.

        Args:
            num_rows: its rows.
            planned: drafts that they were to check, and those of them that the step was to compute.
            result: what came of it.
            host_s: seconds that planning and committing it took.
        """
        num_drafts, num_late = planned
        num_unmade = sum(row.num_unmade for row in result.rows) if num_drafts else 0
        is_reading = num_unmade > 0 and self._offered.reads
        if not is_reading:
            num_drafts -= num_unmade  # nobody reads: what the row lacked could not be drafted
            num_late -= num_unmade
        self._reading.observe(result.seconds, result.draft_s, num_drafts, is_reading=is_reading)
        if is_reading:
            return result.seconds - result.draft_s  # the price of nothing that comes again
        late_s = self.ways.observe(num_late, result)
        price_s = host_s + result.seconds - late_s
        if not (num_drafts or self._offered.is_late):
            price_s -= result.draft_s  # where only lookups draft, looking is part of their own price
        self._price.observe(num_rows, num_drafts, price_s)
        if not num_drafts:
            self._plain_share = result.seconds / price_s if price_s > 0.0 else 1.0
            return result.seconds
        rounds = sum(len(row.tokens) for row in result.rows) / num_rows
        plain_s = price_s / self._price.ratio(num_rows, num_drafts)
        self.counts["draft_step_seconds"] += host_s + result.seconds
        self.counts["draft_plain_seconds"] += rounds * plain_s
        return plain_s * self._plain_share

    def pass_by(self, result: StepResult) -> None:
        """A step is over that also computed prompts, so that it tells nothing of the price of others."""
        is_reading = self._offered.reads and any(row.num_unmade for row in result.rows)
        self._reading.book(result.seconds, result.draft_s if is_reading else 0.0)

    def _choose_best(self, seqs: list[Sequence], num_rows: int, room: int) -> None:
        found: list[Draft] = []
        chances_of: list[list[float]] = []
        for i, seq in enumerate(seqs):
            count = min(seq.num_drafts, _useful(seq), room)
            chances: list[float] = []
            if count > 0 and seq.track is not None:
                chances = self.ways.chances(seq.track, count, is_late=seq.is_late)
            chances_of.append(chances)
            found += [(-chance, i) for chance in chances if chance >= LEAST_CHANCE]
            seq.num_drafts = 0
        found.sort()
        if self._reading.is_on and self._is_checking and self._num_held < MAX_HELD:
            self._num_held += 1
            chosen = found[: max(0, min(room, self._num_chosen))]
        else:
            self._num_held = 0
            chosen = self._best(found, [seq.is_late for seq in seqs], num_rows, room)
        self._num_chosen = len(chosen) or self._num_chosen
        for _, i in chosen:
            seqs[i].num_drafts += 1
        for seq, chances in zip(seqs, chances_of, strict=True):
            if seq.track is not None:
                choice = self._choice if chances else Choice(DraftReason.NO_ROOM)
                seq.track.story.decide(choice, seq.num_drafts, chances)

    def _best(self, found: list[Draft], late: list[bool], num_rows: int, room: int) -> list[Draft]:
        """Those of these drafts, the likeliest first, that make the most of a step; `late` by sequence."""
        most = min(len(found), max(room, 0))
        if not most or self._price.is_plain_due(num_rows, is_often=not self.ways.is_trying):
            why = DraftReason.MEASURING if most else DraftReason.NO_GAIN if room > 0 else DraftReason.NO_ROOM
            self._choice = Choice(why)
            return []
        ratios = self._price.ratios(num_rows, most)
        made = self.ways.makings(num_rows, min(sum(late), most))
        peak = _peak(found[:most], late, num_rows, ratios, made)
        lookups = [(chance, i) for chance, i in found if not late[i]]
        if 0 < len(lookups) < len(found):
            without = _peak(lookups[:most], late, num_rows, ratios, made)
            if without.rate > peak.rate:
                found, peak, most = lookups, without, min(len(lookups), most)
        gain = peak.rate / num_rows / self._hope()
        is_late = any(late[i] for _, i in found[: peak.num_drafts])
        is_trial = self.ways.is_trying and is_late
        least = (LOSS if is_late else 1.0) if self._is_checking else self._gain
        is_worth = gain >= least
        if is_worth or not is_trial:
            self._turn(is_worth=is_worth)
        is_on = is_trial or self._is_checking
        self._choice = Choice(DraftReason.PAYS if is_on else DraftReason.NO_GAIN, peak.cost, gain)
        if is_trial or not is_on:
            return found[: peak.num_drafts] if is_on else []
        return found[: self._explored(peak.num_drafts, most, num_rows)]

    def _explored(self, best: int, most: int, num_rows: int) -> int:
        """The number of drafts that seems best, or now and then one of which less is known."""
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


class _Peak(NamedTuple):
    """The number of drafts with which a step gives the most tokens for its cost."""

    num_drafts: int
    cost: float
    """In plain steps."""
    rate: float
    """Tokens over `cost`."""


def _peak(
    found: list[Draft], late: list[bool], num_rows: int, ratios: list[float], made: list[float]
) -> _Peak:
    """The best number of these drafts, taken in their order.

    Args:
        found: the drafts.
        late: whether a drafter makes those of a sequence.
        num_rows: of the step.
        ratios: cost of the step with 0, 1 .. drafts, without what makes them.
        made: cost of a drafter's pass for 0, 1 .. rows.
    """
    tokens, making = float(num_rows), 0.0
    counts, passes = [0] * len(late), [0] * (len(found) + 1)
    best, best_cost, best_rate = 0, 1.0, 0.0
    for n, (chance, i) in enumerate(found, 1):
        tokens -= chance
        if late[i]:
            at = counts[i]
            making -= made[passes[at]]
            counts[i], passes[at] = at + 1, passes[at] + 1
            making += made[passes[at]]
        cost = ratios[n] + making
        if tokens / cost > best_rate:
            best, best_cost, best_rate = n, cost, tokens / cost
    return _Peak(best, best_cost, best_rate)


def _why_never(request: Request) -> DraftReason:
    """Why a request is not drafted for."""
    if request.task is not None:
        return DraftReason.OTHER_TASK
    return DraftReason.OFF if request.sampling.structured is None else DraftReason.GRAMMAR


def _count_row(counts: defaultdict[str, float], method: str, num_checked: int, num_accepted: int) -> None:
    """Add a row that checked a method's drafts to `Depth.counts`."""
    counts["draft_rows"] += 1
    counts["drafts_checked"] += num_checked
    counts["drafts_accepted"] += num_accepted
    for i in range(num_accepted):
        counts[f"drafts_accepted_{i}"] += 1
    counts[f"drafts_by_{method}_rows"] += 1
    counts[f"drafts_by_{method}_checked"] += num_checked
    counts[f"drafts_by_{method}_accepted"] += num_accepted
    counts[f"drafts_by_{method}_first"] += num_accepted > 0


def _near(best: int) -> tuple[int, ...]:
    """Numbers of drafts that may be better than the one that seems best, the most telling first."""
    far = max(1, best // 4)
    found = best - 1, best + 1, 2 * best + 1, best - far, best + far
    return tuple(n for n in found if n > 0)


def _useful(seq: Sequence) -> int:
    """Drafts that a row can check before the answer reaches its limit."""
    return seq.max_positions - len(seq.tokens)
