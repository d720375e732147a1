"""Steps that repeat the one before leave what the general way leaves, whoever comes, goes, ends or fails."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from headrace.base.errors import InvariantError
from headrace.base.ids import SlotId
from headrace.base.metrics.timeline import Timeline
from headrace.base.step import Drafted, Row, RowResult, StepPlan, StepResult, TokenLogprobs
from headrace.base.terms import Tenant, Terms
from headrace.compute.device.limits import ASSUMED
from headrace.engine.cost.meter import StepMeter
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import CostShape
from headrace.engine.sim import SimCost
from headrace.host.sched.batch import Batch
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.timeline.times import StepTime, Times, Together
from tests.kit.host import World, choices, make_request

TERMS = (
    Terms(),
    Terms(),
    Terms(tenant=Tenant(name="t", weight=4.0)),
    Terms(tenant=Tenant(name="u", priority=1)),
)
RARE = (Terms(is_background=True), Terms(tenant=Tenant(name="s", kv_share=0.9)))


def pair(**settings: Any) -> tuple[World, World]:
    """Two equal worlds, of which the second knows the general way only."""
    settings.setdefault("cost", SimCost(step_s=0.01, prefill_token_s=0.002))
    worlds = World(**settings), World(**settings)
    worlds[1].scheduler._planner.repeat.extend = lambda batch: False
    return worlds


def told(timeline: Timeline | None) -> dict[Any, float]:
    assert timeline is not None
    return {(p.name, p.reason): p.seconds for p in timeline.parts}


def check_equal(short: World, general: World) -> None:
    """The schedulers, ledgers and timelines of both."""
    found = []
    for world in (short, general):
        scheduler, ledger = world.scheduler, world.ledger
        sequences = scheduler._sequences
        states = {
            name: (s.tokens, s.num_computed, s.num_valid, s.pending, s.slot, s.lease, s.state, s.life)
            for name, s in sequences.items()
        }
        tables = {name: ledger.table(name) for name in sequences if ledger.is_open(name)}
        served = {name: s.account.served for name, s in sequences.items()}
        found.append((states, tables, served, scheduler.stats(), scheduler.next_wakeup_s()))
    assert found[0] == found[1]
    for name in short.scheduler._sequences:
        times = (told(world.scheduler.timeline(name)) for world in (short, general))
        assert next(times) == pytest.approx(next(times), rel=1e-9, abs=1e-9)


def check_ends(short: World, general: World) -> None:
    """What was told of those that ended."""
    assert [replace(plan, repeats=None) for plan in short.plans] == general.plans
    for left, right in ((short.tokens, general.tokens), (short.logprobs, general.logprobs)):
        assert left == right
    assert (short.cached, short.times) == (general.cached, general.times)
    assert list(short.last) == list(general.last)
    for name, last in short.last.items():
        other = general.last[name]
        assert last._replace(timing=None) == other._replace(timing=None)
        times = [told(delta.timing.timeline) for delta in (last, other) if delta.timing]
        assert times[0] == pytest.approx(times[1], rel=1e-9, abs=1e-9)
        timings = [replace(delta.timing, timeline=None) for delta in (last, other) if delta.timing]
        assert timings[0] == timings[1]


def drive(worlds: tuple[World, World], rng: Random, depths: list[int]) -> int:
    """Random arrivals, aborts and delays, the same for both; how many steps were said to repeat others."""
    short, general = worlds
    names = [f"r{i}" for i in range(rng.randrange(3, 9))]
    while names or short.scheduler.has_work:
        if names and rng.random() < 0.15:
            request = make_request(
                names.pop(),
                [rng.randrange(3) for _ in range(rng.randrange(1, 8))],
                max_tokens=(most := rng.randrange(1, 40)),
                seed=rng.randrange(3),
                end_ids=frozenset({0} if rng.random() < 0.2 else ()),
                min_tokens=min(most, rng.choice([1, 1, 12])),
                terms=rng.choice(TERMS if rng.random() < 0.9 else RARE),
                logprobs=rng.choice([None, None, 0]),
                prompt_logprobs=0 if rng.random() < 0.05 else None,
            )
            group = choices(request, rng.choice([1, 1, 1, 2]), rng)
            for world in worlds:
                world.add(*group)
        if short.requests and rng.random() < 0.02:
            name = rng.choice(sorted(short.requests))
            for world in worlds:
                world.abort(name)
        delay_s, depth = rng.choice([0.0, 0.001, 0.02]), rng.choice(depths)
        for world in worlds:
            world.clock.advance(delay_s)
            if world.scheduler.has_steps:
                world.step(depth)
        check_equal(short, general)
        assert len(short.plans) < 3000, "no progress"
    for world in worlds:
        world.verify()
    check_ends(short, general)
    return sum(plan.repeats is not None for plan in short.plans)


@pytest.mark.parametrize(("depths", "least"), [([1], 800), ([1, 1, 1, 1, 1, 1, 2, 3], 100), ([2], None)])
def test_repeated_steps_leave_what_the_general_way_leaves(depths: list[int], least: int | None) -> None:
    repeated = 0
    for seed in range(40):
        rng = Random(seed)
        size, vocab = rng.randrange(1, 6), rng.choice([3, 97])
        blocks = rng.randrange(60, 140) // size
        limits = ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=rng.randrange(3, 25))
        worlds = pair(block_size=size, num_blocks=blocks, vocab=vocab, limits=limits)
        repeated += drive(worlds, rng, depths)
    assert (
        repeated >= least if least is not None else repeated == 0
    )  # a step ahead, somebody's token is still to come


def steady(num: int = 3, **more: Any) -> tuple[World, World]:
    """Worlds whose sequences have begun to repeat steps."""
    worlds = pair(num_blocks=64)
    for world in worlds:
        for i in range(num):
            world.add(make_request(f"r{i}", [i, 5], max_tokens=20, seed=i, **more))
        for _ in range(5):
            world.step()
    assert worlds[0].plans[-1].repeats is not None
    return worlds


def test_an_answer_ends_at_its_limit_and_the_others_go_on() -> None:
    worlds = steady()
    for world in worlds:
        world.add(make_request("short", [9], max_tokens=7))
        world.run()
        world.verify()
    check_ends(*worlds)
    assert worlds[0].timing("short").num_steps == 7


def test_one_that_ends_while_a_step_runs_gets_nothing_of_it() -> None:
    worlds = steady()
    for world in worlds:
        plan = world.scheduler.plan()
        assert plan is not None
        result = world.executor.run(plan)
        world.plans.append(plan)
        world.abort("r1")
        for delta in world.scheduler.commit(result).deltas:
            world.hear(delta)
        assert world.scheduler.stats().late_results == 1
        world.run()
        world.verify()
    assert worlds[0].plans[5].repeats is not None
    check_ends(*worlds)


def test_end_tokens_of_others_and_before_min_tokens_stop_no_repeating() -> None:
    """One caller who ends at a frequent token slows nobody down."""
    worlds = pair(num_blocks=64)
    for world in worlds:
        everything = frozenset(range(1000))
        world.add(make_request("ends", [1, 5], max_tokens=20, min_tokens=20, seed=1, end_ids=everything))
        world.add(make_request("r", [2, 5], max_tokens=20, seed=2))
        world.run()
    check_ends(*worlds)
    assert sum(plan.repeats is not None for plan in worlds[0].plans) > 12


def test_those_who_left_are_not_kept() -> None:
    short, _ = steady()
    repeat = short.scheduler._planner.repeat
    assert repeat._crew is not None
    for name in sorted(short.requests):
        short.abort(name)
    assert repeat._crew is None


def test_the_step_that_repeats_is_not_kept() -> None:
    """It may hold the prompts of those who enter in it."""
    short, _ = steady()
    short.add(make_request("late", [9, 5], max_tokens=20))
    short.step()
    assert short.plans[-1].begins, "the step that everybody goes on in has its prompt, too"
    assert not any(isinstance(value, Batch) for value in vars(short.scheduler._planner.repeat).values())


def test_a_row_that_fails_ends_alone() -> None:
    worlds = steady()
    for world in worlds:
        plan = world.scheduler.plan()
        assert plan is not None
        result = world.executor.run(plan)
        rows = [r._replace(tokens=(), error="broken") if i == 1 else r for i, r in enumerate(result.rows)]
        deltas = world.scheduler.commit(replace(result, rows=tuple(rows))).deltas
        assert [(d.error, len(d.new_ids)) for d in deltas] == [(None, 1), ("broken", 0), (None, 1)]
        world.scheduler.check()
    check_equal(*worlds)


def test_a_result_that_lacks_a_row_is_refused() -> None:
    for world in steady():
        plan = world.scheduler.plan()
        assert plan is not None
        result = world.executor.run(plan)
        with pytest.raises(InvariantError, match="no result for 'r2'"):
            world.scheduler.commit(replace(result, rows=result.rows[:-1]))


def test_log_probabilities_are_passed_on() -> None:
    worlds = steady(logprobs=0)
    for world in worlds:
        world.run()
        world.verify()
    check_ends(*worlds)
    assert len(worlds[0].logprobs["r0"]) == 20


def test_shares_of_tenants_count_tokens_of_repeated_steps() -> None:
    worlds = pair(num_blocks=64)
    for world in worlds:
        for i, weight in enumerate((1.0, 2.0)):
            terms = Terms(tenant=Tenant(name=f"t{i}", weight=weight))
            world.add(make_request(f"r{i}", [i], max_tokens=9, terms=terms))
        for _ in range(6):
            world.step()
    check_equal(*worlds)
    served = [s.account.served[0] for s in worlds[0].scheduler._sequences.values()]
    assert served == [1 + 2 * 6, (1 + 2 * 6) / 2]


def test_time_that_is_booked_together_is_that_of_each() -> None:
    rng, now_s = Random(3), 1.0
    alone = Times(0.0)
    joined = [Times(0.0), Times(0.0)]
    for times in (alone, *joined):
        times.enter(now_s, 0.0)
    together = Together(now_s)
    for times in joined:
        times.join(together)
    for i in range(9):
        seconds = rng.random()
        now_s += seconds + rng.choice([0.0, 0.25, -0.1 * seconds])
        step = StepTime(now_s=now_s, planned_s=now_s, seconds=seconds, prefills={}, share=0.0)
        row = Row(slot=SlotId(0), lease=0, start=9, count=1)
        step.book(alone, row)
        if i < 6:
            together.book(now_s, seconds)
        for times in joined if i >= 6 else ():
            step.book(times, row)
        for times in joined:
            found, wanted = (
                {part.name: part.seconds for part in each.told({}, 0.0, now_s + 0.5)}
                for each in (times, alone)
            )
            assert found == pytest.approx(wanted)
    assert [times.num_steps for times in joined] == [9, 9]
    assert all(times.until_s == now_s for times in joined)


@pytest.mark.parametrize("windows", [((None, 1.0),), ((None, 0.5), (3, 0.5))])
def test_the_meter_knows_the_work_of_repeated_steps(windows: Any) -> None:
    shape = CostShape(
        weight_bytes=10**8,
        token_bytes=10**4,
        per_token=10**8,
        per_logits=10**7,
        per_pair=10**4,
        windows=windows,
        is_float=False,
    )
    meters = [StepMeter(StepModel(shape, ASSUMED)) for _ in range(3)]
    for step in range(1, 60):
        rows = tuple(
            Row(slot=SlotId(i), lease=i, start=start + step, count=1) for i, start in enumerate((1, 7))
        )
        result = StepResult(step=step, rows=(), seconds=0.01 + 0.001 * (step % 3), bytes_read=7, operations=9)
        told = StepPlan(step=step, rows=rows, repeats=None if step in {1, 4, 7, 40} else ())
        meters[0].see(told, result)
        meters[1].see(told, result)
        meters[2].see(replace(told, repeats=None), result)
        assert meters[1].counters() == meters[2].counters()
    assert meters[0].counters() == meters[2].counters()  # was never asked before


def test_results_with_more_than_a_token_take_the_general_way() -> None:
    """Every field of a result is either taken, or known not to be there."""
    crew = steady(num=1)[0].scheduler._planner.repeat._crew
    assert crew is not None
    slot, lease = crew.places[0]
    entry = TokenLogprobs(token_id=5, logprob=-1.0, rank=1)
    plain = RowResult(slot, lease, (5,), (entry,))
    assert crew.tokens_of([plain]) == [5]
    more: dict[str, Any] = {
        "prompt_logprobs": (entry,),
        "num_drafts": 1,
        "num_judged": 1,
        "num_agreed": 1,
        "num_unmade": 1,
        "error": "broken",
        "pooled": b"x",
        "drafted": Drafted(num_late=1),
    }
    assert {*more, "slot", "lease", "tokens", "logprobs"} == set(RowResult._fields)
    for field, value in (more | {"lease": lease + 1, "tokens": (), "tokens ": (5, 6)}).items():
        assert crew.tokens_of([plain._replace(**{field.strip(): value})]) is None, field
    assert crew.tokens_of([plain, plain]) is None
    assert crew.tokens_of([]) is None
