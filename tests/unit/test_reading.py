"""Drafters that read a sequence before they draft for it: reading is weighed, and is never a loss."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import pytest

from headrace.base.config import ScheduleConfig
from headrace.base.ids import RequestId, SlotId
from headrace.base.request import Request, SamplingParams
from headrace.base.step import Drafted, RowResult, StepPlan, StepResult
from headrace.base.tasks import Speculation
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.drafts.depth import MAX_HELD, RETRY, Depth
from headrace.host.sched.drafts.reading import Reading
from headrace.host.sched.drafts.track import Track
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.policy.continuous import POLICY
from headrace.host.sched.scheduler import Scheduler
from tests.kit.drafts import simulate

CATCH_UP, INTAKE = 16, 128
READ_S, CHECK_S = 0.0007, 0.0005
"""A plain step takes 0.01 seconds."""


@dataclass
class LateMachine:
    """A runner in virtual time whose drafter reads what it has not read before it drafts.

    Drafts agree by `rate`, from step `turn` on by `later`.
    """

    rate: float
    draft_s: float
    turn: int = 1 << 30
    later: float = 0.0
    time_s: float = 0.0
    num_tokens: int = 0
    read_s: float = 0.0
    beside_s: float = 0.0
    """Of reading in steps that also computed a prompt."""
    depths: list[int] = field(default_factory=list)
    _read: dict[int, int] = field(default_factory=dict)
    _rng: Random = field(default_factory=lambda: Random(1))

    @property
    def mean_s(self) -> float:
        """There is no noise here."""
        return self.time_s

    def leave(self, slots: Iterable[int]) -> None:
        """Sequences leave their slots: what was read there is of no use to others."""
        for slot in slots:
            self._read.pop(slot, None)

    def run(self, plan: StepPlan) -> StepResult:
        results, draft_s, checked = [], 0.0, 0
        rate = self.rate if len(self.depths) < self.turn else self.later
        for row in plan.rows:
            if not row.sample:  # a piece of a prompt
                results.append(RowResult(row.slot, row.lease))
                continue
            length = row.start + row.count - row.num_drafts
            accepted = unmade = 0
            unread = length - self._read.get(row.slot, 0)
            if row.num_drafts and unread > CATCH_UP:
                unmade, count = row.num_drafts, min(INTAKE, unread)
                self._read[row.slot] = length - unread + count
                draft_s += READ_S * count
                self.read_s += READ_S * count
            elif row.num_drafts:
                while accepted < row.num_drafts and self._rng.random() < rate:
                    accepted += 1
                self._read[row.slot] = length + accepted
                draft_s += self.draft_s * row.num_drafts
                checked += row.num_drafts
            found = RowResult(row.slot, row.lease, (3,) * (accepted + 1), num_unmade=unmade)
            results.append(found._replace(drafted=Drafted(num_late=row.max_drafts)))
            self.num_tokens += accepted + 1
        seconds = 0.01 + CHECK_S * checked + draft_s
        self.time_s += seconds
        is_read = any(result.num_unmade for result in results)
        self.beside_s += draft_s * (is_read and not all(row.sample for row in plan.rows))
        self.depths.append(checked)
        return StepResult(step=plan.step, rows=tuple(results), seconds=seconds, draft_s=draft_s)


def tokens_per_s(rate: float, draft_s: float, method: str, rows: int = 1) -> tuple[float, LateMachine]:
    machine = LateMachine(rate, draft_s)
    return simulate(machine, Speculation.parse(method), rows, 6000, warm=600), machine


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4])
def test_reading_for_drafts_that_do_not_pay_is_never_a_loss(rate, rows):
    """SP-6: a draft costs 0.45 of a step here."""
    plain, _ = tokens_per_s(rate, 0.0045, "off", rows)
    found, machine = tokens_per_s(rate, 0.0045, "draft=x", rows)
    assert found >= 0.98 * plain
    assert machine.read_s <= 0.02 * machine.time_s


@pytest.mark.parametrize("draft_s", [0.0015, 0.0045])
def test_drafts_that_pay_are_found_and_kept(draft_s):
    best = max(tokens_per_s(0.9, draft_s, f"draft=x,depth={k}")[0] for k in (1, 2, 3, 4, 6, 8, 10))
    found, _ = tokens_per_s(0.9, draft_s, "draft=x")
    assert found >= 0.9 * best
    assert found > 1.2 * tokens_per_s(0.9, draft_s, "off")[0]


def test_drafts_that_begin_to_pay_are_tried_again():
    """With answers that begin: the longer one goes on undrafted, the more of it is unread."""
    machine = LateMachine(0.0, 0.0015, turn=2000, later=0.95)
    ledger = KVLedger(64, 64, prefix_cache=False)
    limits = ScheduleLimits(max_num_seqs=1, max_num_batched_tokens=512)
    drafts = Depth(Speculation.parse("draft=x"), 32)
    scheduler = Scheduler(ledger, POLICY(ScheduleConfig()), limits, lambda: 1.0 + machine.time_s, drafts)
    for i in range(200):
        sampling = SamplingParams(max_tokens=100, seed=0)
        scheduler.add_group((Request(request_id=RequestId(f"r{i}"), prompt_ids=(1, 2), sampling=sampling),))
        while scheduler.has_work:
            plan = scheduler.plan()
            assert plan is not None
            machine.leave(plan.ends)
            scheduler.commit(machine.run(plan))
    assert sum(machine.depths[1500:2000]) < 50
    assert sum(machine.depths[-1000:]) > 2000


def test_reading_is_weighed_against_the_rest_of_the_answer():
    reading = Reading()
    assert reading.is_worth(5000, 1, is_try=True)  # nothing is known
    reading.observe(0.01, 0.0, 0, is_reading=False)
    reading.observe(0.11, 0.1, 4, is_reading=True)
    assert reading.is_on
    reading.learn(100)
    assert reading.cost_s(1000) == pytest.approx(1.0)
    assert reading.is_worth(1000, 401, is_try=False)
    assert not reading.is_worth(1000, 399, is_try=False)
    assert not reading.is_worth(10, 10_000, is_try=True)  # too much was read in vain
    reading.repay()
    assert not reading.is_worth(10, 10_000, is_try=True)
    reading.observe(1.0, 0.0, 0, is_reading=False)
    assert not reading.is_on, "the row that was read for is gone"
    assert reading.is_worth(10, 10_000, is_try=True)
    reading.observe(0.05, 0.01, 4, is_reading=False)
    assert not reading.is_on


def pair(num_prompt: int, *, blocks: int) -> tuple[LateMachine, Depth, int]:
    """Two answers of 300 tokens, whose prompts are computed 64 tokens a step; preemptions too.

    A long second one comes when the first is about to be read. No sequence is ever held to be read further
    than its slot was.
    """
    machine = LateMachine(0.95, 0.0015)
    limits = ScheduleLimits(max_num_seqs=2, max_num_batched_tokens=64)
    drafts = Depth(Speculation.parse("draft=x"), 32)
    ledger = KVLedger(blocks, 64, prefix_cache=False)
    scheduler = Scheduler(ledger, POLICY(ScheduleConfig()), limits, lambda: 1.0 + machine.time_s, drafts)

    def add(name: str, count: int) -> None:
        sampling = SamplingParams(max_tokens=300, seed=0)
        request = Request(request_id=RequestId(name), prompt_ids=(1,) * count, sampling=sampling)
        scheduler.add_group((request,))

    add("a", 2 + num_prompt // 2)
    is_alone = True
    while scheduler.has_work:
        if is_alone and (machine.num_tokens > 3 or not num_prompt):
            add("b", 2 + num_prompt)
            is_alone = False
        plan = scheduler.plan()
        assert plan is not None
        machine.leave(plan.ends)
        for seq in scheduler._roster.running:
            assert seq.track is not None
            assert seq.track.num_read <= machine._read.get(seq.slot or 0, 0) + 1
        scheduler.commit(machine.run(plan))
    return machine, drafts, scheduler.stats().preemptions


def test_reading_beside_a_prompt_is_booked(monkeypatch):
    """Tokens and their seconds both count, or reading would seem to cost nothing."""
    monkeypatch.setattr(Reading, "is_worth", lambda *_, **__: True)
    machine, drafts, _ = pair(6000, blocks=256)
    assert machine.beside_s > 0.5
    assert drafts._reading._seconds >= 0.999 * machine.read_s > 1.0
    assert drafts._reading.cost_s(1) == pytest.approx(READ_S, rel=0.1)


def test_what_was_read_is_gone_with_the_slot(monkeypatch):
    monkeypatch.setattr(Reading, "is_worth", lambda *_, **__: True)
    machine, _, preemptions = pair(0, blocks=8)
    assert preemptions > 0
    assert sum(machine.depths) > 100


def crowd(rate: float, later: float, turn: int, steps: int) -> LateMachine:
    """An endless answer beside short ones with prompts of many steps of reading: somebody always reads."""
    machine = LateMachine(rate, 0.0015, turn=turn, later=later)
    ledger = KVLedger(4096, 64, prefix_cache=False)
    limits = ScheduleLimits(max_num_seqs=2, max_num_batched_tokens=4096)
    drafts = Depth(Speculation.parse("draft=x"), 32)
    scheduler = Scheduler(ledger, POLICY(ScheduleConfig()), limits, lambda: 1.0 + machine.time_s, drafts)

    def add(name: str, num_prompt: int, most: int) -> None:
        sampling = SamplingParams(max_tokens=most, seed=0)
        request = Request(request_id=RequestId(name), prompt_ids=(1,) * num_prompt, sampling=sampling)
        scheduler.add_group((request,))

    add("endless", 2, 60_000)
    for step in range(steps):
        if step >= 200 and step % 10 == 0:
            add(f"r{step}", 4000, 11)
        plan = scheduler.plan()
        assert plan is not None
        machine.leave(plan.ends)
        scheduler.commit(machine.run(plan))
    return machine


def test_checking_ends_though_somebody_always_reads(monkeypatch):
    """SP-6: what is chosen holds while rows are read for, and not for ever."""
    monkeypatch.setattr(Reading, "is_worth", lambda *_, **__: True)
    assert sum(crowd(0.95, 0.95, 0, 1000).depths[-300:]) > 300
    machine = crowd(0.95, 0.0, 600, 2500)
    assert sum(machine.depths[400:600]) > 200
    assert sum(machine.depths[-1000:]) < 150


def test_what_was_chosen_holds_for_a_bounded_number_of_choices(monkeypatch):
    drafts, weighed = Depth(Speculation.parse("draft=x"), 32), list[int]()

    def best(*_: object) -> list[object]:
        weighed.append(drafts._num_held)
        return []

    monkeypatch.setattr(drafts, "_best", best)
    drafts._reading.is_on = drafts._is_checking = True
    counts: list[int] = []
    for _ in range(2 * MAX_HELD + 2):
        drafts._choose_best([], 1, 8)
        counts.append(len(weighed))
    assert counts == [*[0] * MAX_HELD, *[1] * (MAX_HELD + 1), 2]


@pytest.mark.parametrize(
    ("method", "is_reading"), [("draft=x", True), ("medusa=x", False), ("eagle=x", False)]
)
def test_drafts_that_could_not_be_made_are_reading_only_where_a_model_reads(method, is_reading):
    """Heads lack a state now and then; that tells nothing of reading, and the step is one without drafts."""
    drafts = Depth(Speculation.parse(method), 32)
    row = RowResult(SlotId(0), 0, (3,), num_unmade=4)
    drafts.observe(1, (4, 4), StepResult(step=0, rows=(row,), seconds=0.01, draft_s=0.001))
    assert drafts._reading.is_on == is_reading
    assert drafts._price.count(1, 4) == 0
    assert drafts._price.count(1, 0) == (not is_reading)


def waiting(num_unread: int) -> SimpleNamespace:
    """A sequence that a drafter has not read, and that holds three drafts of a lookup."""
    track = Track(most=8, depth=None, has_both=True)
    return SimpleNamespace(
        tokens=[0] * num_unread,
        track=track,
        num_output=0,
        max_positions=num_unread + 1000,
        is_late=True,
        num_held=3,
        num_late=8,
        num_drafts=8,
    )


def knowing(total_s: float) -> Depth:
    """Both kinds; a plain step and reading a token take 0.01 s, and so much time is over."""
    drafts = Depth(Speculation.parse("auto,draft=x"), 32)
    drafts._reading.book(total_s, 0.0)
    drafts._reading.observe(0.01, 0.0, 0, is_reading=False)
    drafts._reading.catch_up(1.0)
    drafts._reading.learn(100)
    return drafts


def test_behind_a_lookup_a_try_reads_a_bounded_part_of_the_answer_and_of_all_time():
    for total_s, left, may in ((100.0, 400, True), (100.0, 399, False), (98.0, 400, False)):
        ways, seq = knowing(total_s).ways, waiting(100)
        ways._trial.end()
        ways._trial.again()
        assert ways.is_retrying
        assert ways._is_read(seq, seq.track, left) == may  # type: ignore[arg-type]


def test_where_a_try_may_not_read_the_row_checks_what_the_lookup_found():
    """A price that is tried again is a try too; otherwise reading was weighed when the drafter was chosen."""
    for num_alike, is_on, total_s, is_late in (
        (RETRY, False, 10.0, False),
        (RETRY, False, 1000.0, True),
        (RETRY, True, 10.0, True),
        (RETRY + 1, False, 10.0, True),
    ):
        drafts, seq = knowing(total_s), waiting(100)
        drafts._num_alike, drafts._reading.is_on = num_alike, is_on
        assert drafts._may_read(seq)  # type: ignore[arg-type]
        assert (seq.is_late, seq.num_drafts) == (is_late, 8 if is_late else 3)
