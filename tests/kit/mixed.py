"""A runner in virtual time whose rows can check two kinds of drafts: held ones, and late ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from headrace.base.config import ScheduleConfig
from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from headrace.base.step import Drafted, Row, RowResult, StepPlan, StepResult
from headrace.base.tasks import Speculation
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.drafts.depth import Depth
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.policy.continuous import POLICY
from headrace.host.sched.scheduler import Scheduler

CATCH_UP, INTAKE = 16, 128
PLAIN_S, CHECK_S = 0.01, 0.0004
Rate = Callable[[int], float]
"""Output token, counted from 0 -> the chance that a draft of it agrees; below 0: there is none."""


@dataclass
class MixedMachine:
    """Steps take `PLAIN_S`, `CHECK_S` more a draft, `make_s` for each made, `read_s` for a token read.

    Where `is_shared`, `make_s` is that of a pass, which makes a draft of every row.
    """

    lookup: Rate
    drafter: Rate
    make_s: float = 0.003
    read_s: float = 0.001
    num_prompt: int = 2
    seed: int = 0
    is_shared: bool = False
    reads: bool = True
    """The drafter computes a sequence's tokens before it drafts."""
    places: tuple[float, ...] = ()
    """Chances of the drafter's first, second .. draft of a row, instead of `drafter`."""
    of_slots: dict[int, tuple[Rate, Rate]] = field(default_factory=dict)
    """Other chances of lookup and drafter for some slots."""
    late_rows: Counter[int] = field(default_factory=Counter)
    """Rows that the drafter drafted for, by slot."""
    num_made: int = 0
    has_lookup: bool = True
    has_drafter: bool = True
    time_s: float = 0.0
    num_tokens: int = 0
    num_read: int = 0
    kinds: list[str] = field(default_factory=list)
    """Of the first row of each step that drew a token: `-` plain, `l` lookup, `d` drafter, `r` reading."""
    _held: dict[int, list[bool]] = field(default_factory=dict)
    _read: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lookup_rng, self._drafter_rng = Random(2 * self.seed), Random(2 * self.seed + 1)

    def run(self, plan: StepPlan) -> StepResult:
        """Like `Runner.run`."""
        for slot in plan.ends:
            self._held.pop(slot, None)
            self._read.pop(slot, None)
        self._draft_s, self._num_passes, before = 0.0, 0, len(self.kinds)
        results = [self._row(row) for row in plan.rows]
        del self.kinds[before + 1 :]
        self._draft_s += self.make_s * self._num_passes
        checked = sum(r.num_drafts for r in plan.rows) - sum(r.num_unmade for r in results)
        seconds = PLAIN_S + CHECK_S * checked + self._draft_s
        self.time_s += seconds
        return StepResult(step=plan.step, rows=tuple(results), seconds=seconds, draft_s=self._draft_s)

    def _row(self, row: Row) -> RowResult:
        if not row.sample:
            return RowResult(row.slot, row.lease)
        length = row.start + row.count - row.num_drafts
        at, held, unmade = length - self.num_prompt, self._held.pop(row.slot, []), 0
        checked = held[: row.num_drafts]
        lookup, drafter = self.of_slots.get(row.slot, (self.lookup, self.drafter))
        if row.num_drafts and row.is_late:
            unread = length - self._read.get(row.slot, 0) if self.reads else 0
            count = min(INTAKE, unread) if unread > CATCH_UP else unread
            checked = [] if unread > CATCH_UP else self._make(drafter, at, row.num_drafts)
            unmade = row.num_drafts - len(checked)
            self._read[row.slot] = length - unread + count
            self._draft_s += self.read_s * max(0, count - 1)
            self.num_read += count
            self.num_made += len(checked)
            self.late_rows[row.slot] += bool(checked)
        else:
            assert row.num_drafts <= len(held), "more drafts than the slot holds"
        accepted = next((i for i, is_right in enumerate(checked) if not is_right), len(checked))
        if checked and row.is_late:
            self._read[row.slot] = length + min(accepted, len(checked) - 1)
        kind = "-" if not row.num_drafts else "r" if unmade else "d" if row.is_late else "l"
        self.kinds.append(kind)
        self.num_tokens += accepted + 1
        tokens = (3,) * (accepted + 1)
        judged = min(len(held), len(tokens))
        agreed = next((i for i in range(judged) if not held[i]), judged)
        new: list[bool] = []
        if self.has_lookup and row.max_drafts:
            new = _throw(self._lookup_rng, lookup, at + len(tokens), min(row.max_drafts, 8))
        self._held[row.slot] = new
        return RowResult(
            row.slot,
            row.lease,
            tokens,
            num_drafts=len(new),
            num_judged=judged,
            num_agreed=agreed,
            num_unmade=unmade,
            drafted=Drafted("suffix" if new else "", row.max_drafts if self.has_drafter else 0),
        )

    def _make(self, rate: Rate, at: int, count: int) -> list[bool]:
        made = _throw(self._drafter_rng, lambda i: self.places[i - at] if self.places else rate(i), at, count)
        self._num_passes = (
            max(self._num_passes, len(made)) if self.is_shared else self._num_passes + len(made)
        )
        return made


def _throw(rng: Random, rate: Rate, at: int, count: int) -> list[bool]:
    rates = [rate(at + i) for i in range(count)]
    known = next((i for i, chance in enumerate(rates) if chance < 0), count)
    return [rng.random() < chance for chance in rates[:known]]


METHODS = {"both": "auto,draft=x", "lookup": "auto", "drafter": "draft=x"}


def serve(
    machine: MixedMachine, method: str, *, requests: int = 1, rows: int = 1, output: int = 2000, warm: int = 0
) -> tuple[float, Depth]:
    """Tokens per second of so many answers after `warm` tokens; at most `rows` at a time.

    The real scheduler decides.
    """
    speculation = Speculation.parse(method)
    machine.has_lookup, machine.has_drafter = bool(speculation.lookup), speculation.is_late
    ledger = KVLedger(4096, 64, prefix_cache=False)
    limits = ScheduleLimits(max_num_seqs=rows, max_num_batched_tokens=4096, max_queued_requests=requests)
    drafts = Depth(speculation, 32)
    scheduler = Scheduler(ledger, POLICY(ScheduleConfig()), limits, lambda: 1.0 + machine.time_s, drafts)
    for i in range(requests):
        sampling = SamplingParams(max_tokens=output, seed=0)
        prompt = (1,) * machine.num_prompt
        scheduler.add_group((Request(request_id=RequestId(f"r{i}"), prompt_ids=prompt, sampling=sampling),))
    began = 0, 0.0
    while scheduler.has_work:
        if machine.num_tokens <= warm:
            began = machine.num_tokens, machine.time_s
        plan = scheduler.plan()
        assert plan is not None
        scheduler.commit(machine.run(plan))
    return (machine.num_tokens - began[0]) / (machine.time_s - began[1]), drafts
