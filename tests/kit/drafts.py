"""Proposers and runners whose drafts are told them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from headrace.base.config import ScheduleConfig
from headrace.base.ids import RequestId
from headrace.base.metrics.drafts import DraftReport
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.step import Drafted, RowResult, StepPlan, StepResult
from headrace.base.tasks import Speculation
from headrace.compute.spec.drafting import Drafting
from headrace.compute.spec.proposer import Ask, Needs
from headrace.engine.core import EngineCore
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.drafts.depth import Depth
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.policy.continuous import POLICY
from headrace.host.sched.scheduler import Scheduler


class Scripted:
    """Drafts are a function of the tokens so far.

    Checks that a slot's tokens only grow between `begin` and `end`.
    """

    needs = Needs.NOTHING
    auto_place = 0

    def __init__(self, say: Callable[[Sequence[int]], Sequence[int]]) -> None:
        self._say = say
        self._known: dict[int, list[int]] = {}

    def begin(self, slot: int) -> None:
        self._known[slot] = []

    def end(self, slot: int) -> None:
        del self._known[slot]

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        for ask in asks:
            before = self._known[ask.slot]
            assert list(ask.ids[: len(before)]) == before, "tokens of a slot changed"
            self._known[ask.slot] = list(ask.ids)
        return [list(self._say(list(ask.ids)))[: ask.most] for ask in asks]


def scripted(say: Callable[[Sequence[int]], Sequence[int]]) -> Drafting:
    """The drafting of a runner whose only proposer is scripted."""
    return Drafting({"scripted": Scripted(say)}, Speculation("scripted"))


def draft_with(core: EngineCore, say: Callable[[Sequence[int]], Sequence[int]]) -> None:
    """Let the engine's drafts be a function of the tokens so far."""
    parts = core.runner._parts
    assert parts.drafting is not None
    core.runner._parts = replace(parts, drafting=Drafting({"ngram": Scripted(say)}, Speculation("ngram")))


def set_price(core: EngineCore, price: Callable[[int, int], float]) -> None:
    """Let steps take what `price` says, (rows, drafts) -> seconds, and the host nothing: no clock decides."""
    run = core.runner.run

    def priced(plan: StepPlan) -> StepResult:
        seconds = price(len(plan.rows), sum(row.num_drafts for row in plan.rows))
        return replace(run(plan), seconds=seconds, draft_s=seconds / 10)

    core.runner.run = priced  # type: ignore[method-assign]
    began_s = core.scheduler._now_s()
    core.scheduler._now_s = lambda: began_s


class Machine:
    """A runner in virtual time whose drafts agree by the throw of a die.

    What is counted are the tokens and seconds that its steps take on average: the controller sees its luck,
    and is judged by what it chose.

    Args:
        rate: (slot, step) -> chance that a draft agrees, each on its own.
        cost: (rows, drafts) -> seconds of a step.
        noise: steps take up to so much longer or shorter.
        most: drafts that are proposed at most.
    """

    def __init__(self, rate, cost, *, noise: float = 0.0, most: int = 16, seed: int = 0) -> None:
        self._rate, self._cost, self._noise, self._most = rate, cost, noise, most
        self._rng = Random(seed)
        self._held: dict[int, list[bool]] = {}
        self.time_s = 0.0
        self.num_tokens = 0.0
        self.mean_s = 0.0
        self.depths: list[int] = []
        """Drafts checked, step by step."""

    def run(self, plan: StepPlan) -> StepResult:
        results, rng = [], self._rng
        for row in plan.rows:
            held = self._held.get(row.slot, [])
            rate = self._rate(row.slot, len(self.depths))
            checked = held[: row.num_drafts]
            accepted = next((i for i, is_right in enumerate(checked) if not is_right), len(checked))
            judged = min(len(held), accepted + 1)
            agreed = next((i for i in range(judged) if not held[i]), judged)
            made = [rng.random() < rate for _ in range(min(row.max_drafts, self._most))]
            self._held[row.slot] = made
            self.num_tokens += sum(rate**i for i in range(row.num_drafts + 1))
            results.append(
                RowResult(
                    row.slot,
                    row.lease,
                    (3,) * (accepted + 1),
                    num_drafts=len(made),
                    num_judged=judged,
                    num_agreed=agreed,
                    drafted=Drafted("suffix" if made else ""),
                )
            )
        num_drafts = sum(row.num_drafts for row in plan.rows)
        mean_s = self._cost(len(plan.rows), num_drafts)
        seconds = mean_s * (1 + rng.uniform(-self._noise, self._noise))
        self.time_s += seconds
        self.mean_s += mean_s
        self.depths.append(num_drafts)
        return StepResult(step=plan.step, rows=tuple(results), seconds=seconds)


def simulate(
    machine: Machine,
    speculation: Speculation,
    rows: int,
    steps: int,
    warm: int = 60,
    reports: list[DraftReport | None] | None = None,
) -> float:
    """Tokens per second of `rows` endless answers after `warm` steps; the real scheduler decides.

    `reports` takes what is told of each answer's drafts.
    """
    ledger = KVLedger(64 * rows, 1024, prefix_cache=False)
    limits = ScheduleLimits(max_num_seqs=rows, max_num_batched_tokens=512)
    drafts = Depth(speculation, ROOM) if speculation.is_on else None
    scheduler = Scheduler(ledger, POLICY(ScheduleConfig()), limits, lambda: 1.0 + machine.time_s, drafts)
    for i in range(rows):
        sampling = SamplingParams(max_tokens=60_000, seed=0)
        request = Request(request_id=RequestId(f"r{i}"), prompt_ids=(1, 2), sampling=sampling)
        scheduler.add_group((request,))
    began = (0.0, 0.0)
    for step in range(steps + warm):
        if step == warm:
            began = machine.mean_s, machine.num_tokens
        plan = scheduler.plan()
        assert plan is not None
        scheduler.commit(machine.run(plan))
    if reports is not None:
        ends = [scheduler.finish(RequestId(f"r{i}"), FinishReason.ABORT) for i in range(rows)]
        reports += [end.timing.drafts for end in ends if end is not None and end.timing is not None]
    return (machine.num_tokens - began[1]) / (machine.mean_s - began[0])


ROOM = 64
"""Most drafts of a simulated step."""


def fixed_speed(rate: float, cost: Callable[[int, int], float], rows: int, depth: int) -> float:
    """Tokens per second of rows that check `depth` drafts each; each draft agrees by the chance `rate`."""
    depth = min(depth, ROOM // rows)
    return rows * sum(rate**i for i in range(depth + 1)) / cost(rows, rows * depth)
