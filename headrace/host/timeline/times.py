"""The time of a sequence in its slot: booked when a step is committed, and when it enters and leaves.

until_s |-- host --|---- the step: own work | others' prompts ----|-- host --| now_s
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.metrics.timeline import OthersPrefill, Part, PartName, PrefixResult
from headrace.base.step import Row

MOST_OTHERS = 16
"""Others' prompts that a sequence remembers by name, those that took most; their sum is always whole."""
NAMED = 3
"""Of those, how many a timeline tells."""
ROUNDING_S = 1e-9
WAITING = "waiting"
RECOMPUTING = "recomputing"
OTHERS = "others"


class Prefill(NamedTuple):
    """A row of a step that computes tokens of a prompt (or of a sequence that lost its blocks)."""

    request_id: str
    tenant: str
    num_tokens: int


class Together:
    """The time of sequences that decode in the same steps, booked once for all of them.

    Args:
        until_s: up to when the time of each has been booked.

    Attributes:
        decode_s, host_s, num_steps: since they joined, for each of them.
    """

    __slots__ = ("decode_s", "host_s", "num_steps", "until_s")

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.decode_s = self.host_s = 0.0
        self.num_steps = 0

    def book(self, now_s: float, seconds: float) -> None:
        """A step of all of them, committed now, took so long; the rest of the time is the host's."""
        spent_s = now_s - self.until_s
        own_s = min(seconds, spent_s)
        self.host_s += spent_s - own_s
        self.decode_s += own_s
        self.num_steps += 1
        self.until_s = now_s


class Times:
    """Where one sequence's time in slots has gone, up to `until_s`. Changed by the scheduler only.

    While it is booked together with others (`join`), its own numbers are those of before; whatever happens to
    it alone parts it from them first.

    Args:
        arrival_s: monotonic seconds.
    """

    __slots__ = (
        "decode_s",
        "draft_s",
        "host_s",
        "lookup_s",
        "num_steps",
        "others",
        "others_draft_s",
        "others_s",
        "prefill_s",
        "prefix",
        "recompute_s",
        "redo_below",
        "stalls",
        "together",
        "until_s",
        "verify_s",
    )

    def __init__(self, arrival_s: float) -> None:
        self.until_s = arrival_s
        self.host_s = self.lookup_s = self.others_s = 0.0
        self.prefill_s = self.recompute_s = self.decode_s = self.verify_s = 0.0
        self.draft_s = self.others_draft_s = 0.0
        # Steps in which it had a row.
        self.num_steps = 0
        self.together: Together | None = None
        # In a slot, but in no row of a step: seconds by reason.
        self.stalls: dict[str, float] = {}
        # (request, tenant) -> seconds of this sequence's steps that its prompt took.
        self.others: dict[tuple[str, str], float] = {}
        # Positions below were computed before a preemption.
        self.redo_below = 0
        self.prefix: PrefixResult | None = None

    def join(self, together: Together) -> None:
        """From now on it is booked with others; so far it was booked alone, up to the same moment as they."""
        self.together = together

    def part(self) -> None:
        """Take over what was booked together with others."""
        shared, self.together = self.together, None
        if shared is not None:
            self.decode_s += shared.decode_s
            self.host_s += shared.host_s
            self.num_steps += shared.num_steps
            self.until_s = shared.until_s

    def enter(self, now_s: float, lookup_s: float) -> None:
        """It gets a slot; the time before is the queue's. Looking for its prefix took `lookup_s`."""
        self.until_s = now_s + lookup_s
        self.lookup_s += lookup_s

    def leave(self, now_s: float) -> None:
        """It gives its slot up between two steps."""
        self.part()
        self.host_s += max(0.0, now_s - self.until_s)
        self.until_s = max(now_s, self.until_s)

    def lose(self, now_s: float, num_valid: int) -> None:
        """It is preempted: `num_valid` positions have to be computed again."""
        self.leave(now_s)
        self.redo_below = max(self.redo_below, num_valid)

    def told(self, waits: Mapping[str, float], preempted_s: float, now_s: float | None) -> tuple[Part, ...]:
        """The parts that have any time.

        Args:
            waits: seconds in the queue, by reason, before it first ran.
            preempted_s: seconds in the queue afterwards.
            now_s: the moment, for one that is in a slot: the host has the time since the last booking.
        """
        shared = self.together or Together(self.until_s)
        open_s = 0.0 if now_s is None else max(0.0, now_s - shared.until_s)
        queue = dict(waits)
        for reason, seconds in self.stalls.items():
            queue[reason] = queue.get(reason, 0.0) + seconds
        most = max(self.others, key=self.others.__getitem__, default=("", ""))[0]
        parts = [Part(PartName.QUEUE, seconds, reason) for reason, seconds in queue.items()]
        parts += [
            Part(PartName.PREFIX_LOOKUP, self.lookup_s, self.prefix.outcome if self.prefix else ""),
            Part(PartName.PREFILL, self.prefill_s),
            Part(PartName.DECODE, self.decode_s + shared.decode_s),
            Part(PartName.VERIFY, self.verify_s),
            Part(PartName.DRAFT, self.draft_s),
            Part(PartName.DRAFT, self.others_draft_s, OTHERS),
            Part(PartName.OTHERS_PREFILL, self.others_s, most),
            Part(PartName.PREEMPTED, preempted_s, WAITING),
            Part(PartName.PREEMPTED, self.recompute_s, RECOMPUTING),
            Part(PartName.HOST, self.host_s + shared.host_s + open_s),
        ]
        return tuple(part for part in parts if part.seconds > ROUNDING_S)

    def largest_others(self) -> tuple[OthersPrefill, ...]:
        """Those whose prompts took most of its steps."""
        ordered = sorted(self.others.items(), key=lambda item: -item[1])
        return tuple(OthersPrefill(*whose, seconds) for whose, seconds in ordered[:NAMED])


@dataclass(slots=True, kw_only=True)
class StepTime:
    """How the time of one committed step falls to its sequences.

    Args:
        now_s: the moment of the commit.
        planned_s: the moment of the plan; who entered a slot later has nothing to do with this step.
        seconds: what computing it took.
        prefills: its rows of prompts, by lease.
        share: which part of `seconds`, less drafting, they took together; see `prefill_share`.
        draft_share: the part of `seconds` in which drafts were made.
    """

    now_s: float
    planned_s: float
    seconds: float
    prefills: Mapping[int, Prefill]
    share: float
    draft_share: float = 0.0

    def book(self, times: Times, row: Row) -> None:
        """Book the time since the last booking of the sequence of this row of the step. Cost: constant."""
        own_s, lease = self._step_part(times), row.lease
        times.num_steps += 1
        if self.draft_share:
            draft_s = own_s * self.draft_share
            own_s -= draft_s
            if row.max_drafts or row.num_drafts:
                times.draft_s += draft_s
            else:
                times.others_draft_s += draft_s
        if self.prefills:
            own_s -= self._book_others(times, lease, own_s * self.share)
            if lease in self.prefills:
                if row.start < times.redo_below:
                    times.recompute_s += own_s
                else:
                    times.prefill_s += own_s
                return
        if row.num_drafts:
            times.verify_s += own_s
        else:
            times.decode_s += own_s

    def book_idle(self, times: Times, reason: str) -> None:
        """The same for one that has a slot and no row; an empty reason: others' prompts had the step."""
        times.part()
        if times.until_s > self.planned_s:
            return
        own_s = self._step_part(times)
        if reason:
            times.stalls[reason] = times.stalls.get(reason, 0.0) + own_s
        else:
            self._book_others(times, -1, own_s)

    def _step_part(self, times: Times) -> float:
        """The step's part of the time since the last booking; the rest is the host's."""
        times.part()
        spent_s = self.now_s - times.until_s
        own_s = min(self.seconds, spent_s)
        times.host_s += spent_s - own_s
        times.until_s = self.now_s
        return own_s

    def _book_others(self, times: Times, lease: int, prefill_s: float) -> float:
        """Book others' part of `prefill_s`, the time that all prompts of the step took."""
        total = sum(p.num_tokens for p in self.prefills.values())
        taken_s = 0.0
        for other, prefill in self.prefills.items():
            if other != lease:
                part_s = prefill_s * prefill.num_tokens / total
                whose = (prefill.request_id, prefill.tenant)
                times.others[whose] = times.others.get(whose, 0.0) + part_s
                taken_s += part_s
        times.others_s += taken_s
        if len(times.others) > 2 * MOST_OTHERS:
            kept = sorted(times.others.items(), key=lambda item: -item[1])[:MOST_OTHERS]
            times.others = dict(kept)
        return taken_s


def prefill_share(
    seconds: float, prefill_tokens: int, num_decodes: int, num_drafts: int, decode_s: float
) -> float:
    """Which part of a step its prompt tokens took.

    What the step took beyond one that only decodes as many rows is that of prompt tokens and drafts, each
    token alike. While such a step's time is not known, every token and row counts the same.

    Args:
        seconds: of the step.
        prefill_tokens: tokens of prompts in it.
        num_decodes: decoding rows.
        num_drafts: drafts that these check.
        decode_s: seconds of a step that decodes as many rows; 0.0: not known.
    """
    extra = prefill_tokens + num_drafts
    if not prefill_tokens or not num_decodes:
        return float(prefill_tokens > 0)
    is_known = 0.0 < decode_s < seconds
    over = 1.0 - decode_s / seconds if is_known else extra / (extra + num_decodes)
    return over * prefill_tokens / extra
