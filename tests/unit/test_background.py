"""The background: the stated bound on how long others wait for it, and that it keeps its tenants' limits."""

from dataclasses import dataclass, field

import pytest

from headrace.base.errors import CapacityError, OverloadError
from headrace.base.tasks import BeamSearch
from headrace.base.terms import Tenant, Terms
from headrace.engine.sim import SimCost
from headrace.host.sched.limits import ScheduleLimits
from tests.kit.host import World, make_request

COST = SimCost(step_s=0.010, decode_row_s=0.001, prefill_token_s=0.002)
STEP_S = 0.050
MOST = 3


def terms(name: str = "", **more) -> Terms:
    return Terms(tenant=Tenant(name=name, **more))


def later(name: str = "", **more) -> Terms:
    return Terms(tenant=Tenant(name=name, **more), is_background=True)


def world(num_blocks: int = 400, **more) -> World:
    limits = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "prefill_step_s": STEP_S,
        "max_background_seqs": MOST,
    } | more
    return World(num_blocks=num_blocks, block_size=4, cost=COST, limits=ScheduleLimits(**limits))


def ask(where: World, name: str, owner: Terms, length: int = 8, max_tokens: int = 4, **more) -> None:
    prompt = [len(where.requests) * 7 % 90, *range(length - 1)]
    where.add(make_request(name, prompt, max_tokens, terms=owner, **more))


def running(where: World, *, background: bool) -> list[str]:
    return [s.request_id for s in where.scheduler._roster.running if s.is_background is background]


@dataclass
class Course:
    """What one request saw: seconds until it was planned, tokens of its prompt by step, seconds of steps."""

    waited_s: float = 0.0
    chunks: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def follow(where: World, name: str, length: int, max_tokens: int) -> Course:
    """Ask while a step is in flight, the worst moment to come at, and follow the request to its end."""
    plan = where.scheduler.plan()
    arrival_s = where.clock.now_s()
    ask(where, name, terms(), length, max_tokens)
    if plan is not None:
        where.flight.append(where.executor.run(plan))
        for delta in where.scheduler.commit(where.flight.pop()).deltas:
            where.hear(delta)
    course = Course(waited_s=where.clock.now_s() - arrival_s)
    while name not in where.last:
        before_s = where.clock.now_s()
        where.step()
        seq = where.scheduler._sequences.get(name)
        lease = None if seq is None else seq.lease
        rows = where.plans[-1].rows
        mine = [r for r in rows if r.lease == lease] or [r for r in rows if r.lease not in _leases(where)]
        assert mine, f"{name} waits beside the background"
        course.chunks.append(mine[0].count)
        course.seconds.append(where.clock.now_s() - before_s)
    return course


def _leases(where: World) -> set[int]:
    return {s.lease for s in where.scheduler._roster.running if s.is_background}


@pytest.mark.parametrize("length", [3, 40, 150])
def test_nobody_is_delayed_by_the_background_beyond_the_stated_bound(length):
    """The bound of docs/batches.md, at whatever moment the request comes and however full everything is.

    It is planned in the step after the one that runs when it comes, in the same steps as if it was alone, and
    each of them is longer by at most the rows of `max_background_seqs` and what fits into prefill_step_s.
    """
    alone = world()
    ask(alone, "first", terms(), 150, 6)  # the cost model knows this machine
    alone.run()
    want = follow(alone, "mine", length, 5)
    for moment in range(0, 60, 3):
        where = world(num_blocks=150)
        ask(where, "first", terms(), 150, 6)
        where.run()
        for i in range(12):
            ask(where, f"line-{i}", later(f"owner-{i % 2}"), 90 + i, 30)
        for _ in range(moment):
            where.step()
        assert running(where, background=True) or moment == 0
        got = follow(where, "mine", length, 5)
        rows_s = MOST * COST.decode_row_s
        assert got.waited_s <= STEP_S + rows_s
        assert got.chunks == want.chunks
        for mine, own in zip(got.seconds, want.seconds, strict=True):
            assert mine <= max(own + rows_s, STEP_S + rows_s)
        where.run()
        where.verify()


def steps_until_all_run(where: World, num: int) -> int:
    """Steps until as many requests of the foreground run as ask now."""
    for i in range(num):
        ask(where, f"now-{i}", terms(), 30, 20)
    steps = 0
    while len(running(where, background=False)) < num:
        where.step()
        steps += 1
    return steps


def test_all_slots_and_blocks_are_given_up_at_once():
    """Four that need all slots and 52 of 56 blocks begin in the same steps as on an idle machine."""
    idle, full = (world(num_blocks=56, max_background_seqs=4, prefill_step_s=1.0) for _ in range(2))
    for where in (idle, full):  # the cost model knows this machine
        ask(where, "first", terms(), 100, 6)
        where.run()
    for i in range(4):
        ask(full, f"line-{i}", later("o"), 20, 30)
    while len(running(full, background=True)) < 4 or full.ledger.available_blocks > 16:
        full.step()
    assert steps_until_all_run(full, 4) == steps_until_all_run(idle, 4)
    assert running(full, background=True) == []
    full.run()
    full.verify()


def test_the_background_waits_for_ever_while_others_do():
    """Ageing does not help it, whatever its owner's priority; and it goes on when there is room again."""
    where = world(max_num_seqs=1, ageing_s=0.001)
    ask(where, "line", later("best", priority=-1_000_000))
    for i in range(100):
        ask(where, f"now-{i}", terms("worst", priority=1_000_000), 8, 2)
        ask(where, f"more-{i}", terms(), 8, 2)
        where.step()
        assert not running(where, background=True)
    where.run()
    done = where.times["line"][0]
    assert all(done > max(times) for name, times in where.times.items() if name != "line")
    where.verify()


def test_the_background_has_its_slots_and_no_more():
    where = world()
    for i in range(10):
        ask(where, f"line-{i}", later(f"o{i}"))
    most = 0
    while where.scheduler.has_work:
        where.step()
        most = max(most, len(running(where, background=True)))
    assert most == MOST
    with pytest.raises(CapacityError, match=r"width 4 needs as many slots, 3 may be had"):
        ask(where, "wide", later(), task=BeamSearch(width=4))
    where.verify()


@pytest.mark.parametrize("owner", [{"max_running": 2}, {"kv_share": 0.2}])
def test_a_tenant_shares_its_bounds_with_its_background_and_its_requests_go_first(owner):
    where = world(num_blocks=100)
    for i in range(4):
        ask(where, f"line-{i}", later("o", **owner), 20, 20)
        ask(where, f"other-{i}", later("p"), 20, 20)
    for _ in range(10):
        where.step()
        held = [s for s in where.scheduler._roster.running if s.account.tenant.name == "o"]
        assert len(held) <= 2
    before = running(where, background=True)
    assert any(name.startswith("line") for name in before)
    for i in range(2):
        ask(where, f"now-{i}", terms("o", **owner), 20, 20)
    where.step()
    where.step()
    assert len(running(where, background=False)) == 2
    assert not [name for name in running(where, background=True) if name.startswith("line")]
    while "now-0" not in where.last and "now-1" not in where.last:
        where.step()
        assert not [name for name in running(where, background=True) if name.startswith("line")]
    where.run()
    where.verify()


def test_the_background_waits_for_tokens_a_minute_and_leaves_half_of_them():
    where = world()
    owner = {"tokens_per_minute": 600}
    for i in range(20):
        ask(where, f"line-{i}", later("o", **owner), 40, 10)  # 1000 tokens: nothing is refused
    where.step()
    ask(where, "free", later("p"), 40, 10)  # nobody else waits with it
    asked = 0
    while where.scheduler.has_work:
        if not where.step() and asked < 10:  # its owner's own requests find tokens while it waits for some
            ask(where, f"now-{asked}", terms("o", **owner), 20, 4)
            asked += 1
    assert asked == 10
    assert where.timing("free").finished_s < 3
    last = max(where.timing(f"line-{i}").finished_s for i in range(20))
    spent = sum(len(r.prompt_ids) for r in where.requests.values() if "free" not in r.request_id)
    spent += sum(len(t) for name, t in where.tokens.items() if name != "free")
    assert last > 60 * (spent - 300 - 50 * MOST) / 600
    where.verify()


def test_weights_divide_the_background_and_old_batches_cost_no_turn():
    where = world(max_num_seqs=1)
    for i in range(30):
        ask(where, f"heavy-{i}", later("heavy", weight=3))
        ask(where, f"light-{i}", later("light"))
    begun: list[str] = []
    while len(begun) < 20:
        where.step()
        begun += [b.request.request_id for b in where.plans[-1].begins]
    assert 14 <= sum(name.startswith("heavy") for name in begun) <= 16
    for i in range(5):  # heavy was served most, as background
        ask(where, f"now-light-{i}", terms("light"))
        ask(where, f"now-heavy-{i}", terms("heavy"))
    where.run()
    order = sorted((n for n in where.times if n.startswith("now")), key=lambda n: where.times[n][0])
    assert sum("heavy" in name for name in order[:5]) in {2, 3}
    where.verify()


def test_a_full_queue_of_the_background_refuses_nobody_else():
    where = world(max_queued_requests=5, max_queued_tokens=100)
    owner = {"max_running": 3, "max_queued": 0}
    for i in range(5):
        ask(where, f"line-{i}", later("o", **owner))
    with pytest.raises(OverloadError, match="5 background requests"):
        ask(where, "line-5", later("p"))
    while len(running(where, background=True)) < MOST:
        where.step()
    for i in range(3):
        ask(where, f"now-{i}", terms("o", **owner))
    with pytest.raises(OverloadError, match="max_queued of its key"):
        ask(where, "now-3", terms("o", **owner))
    for i in range(4):
        ask(where, f"other-{i}", terms("q"))
    assert where.scheduler._queue.num_foreground == 7
    where.run()
    where.verify()


def test_the_longest_wait_is_for_those_whom_somebody_waits_for():
    where = world(max_queue_s=0.05, max_num_seqs=1)
    ask(where, "now", terms(), 8, 40)
    where.step()
    ask(where, "line", later())
    while where.scheduler.has_work:
        where.step()
        assert where.scheduler.expire() == ()
    where.verify()


def test_who_had_batches_answered_is_not_behind_others_for_it():
    where = world(max_num_seqs=1)
    for i in range(20):
        ask(where, f"line-{i}", later("night"))
    where.run()
    for i in range(4):
        ask(where, f"day-{i}", terms("day"))
        ask(where, f"night-{i}", terms("night"))
    where.run()
    order = sorted((n for n in where.times if not n.startswith("line")), key=lambda n: where.times[n][0])
    assert sum(name.startswith("night") for name in order[:4]) == 2
    where.verify()


def test_the_background_takes_no_room_that_its_tenants_own_request_waits_for():
    """What is left of the share is too little for the request, and enough for the line."""
    where = world(num_blocks=100)
    owner = {"kv_share": 0.2}  # 20 blocks
    ask(where, "first", terms("o", **owner), 40, 12)  # 13 blocks
    where.step()
    ask(where, "now", terms("o", **owner), 40, 12)
    ask(where, "line", later("o", **owner), 8, 4)
    ask(where, "other", later("p"), 8, 4)
    while "first" not in where.last:
        where.step()
        assert "line" not in running(where, background=True)
    assert "other" in where.last
    where.run()
    assert where.timing("line").first_scheduled_s >= where.timing("now").first_scheduled_s
    where.verify()
