"""Several tenants: whose turn it is, what each may take, who may queue up, and who is late."""

from collections import Counter

import pytest

from headrace.base.errors import CapacityError, DeadlineError, OverloadError
from headrace.base.request import FinishReason
from headrace.base.terms import Tenant, Terms
from headrace.engine.output import _error_of
from headrace.host.sched.fair.account import MAX_RETRY_S
from headrace.host.sched.fair.line import FairLine
from headrace.host.sched.fair.rank import MOST_LEVELS, levels_of
from headrace.host.sched.limits import ScheduleLimits
from tests.kit.host import World, make_request


def terms(name: str, deadline_s: float | None = None, **more) -> Terms:
    return Terms(tenant=Tenant(name=name, **more), deadline_s=deadline_s)


def world(**more) -> World:
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 64} | more
    return World(num_blocks=64, block_size=4, limits=ScheduleLimits(**limits))


def ask(where: World, name: str, owner: Terms, length: int = 8, max_tokens: int = 4, **more) -> None:
    prompt = [len(where.requests) * 7 % 90, *range(length - 1)]
    where.add(make_request(name, prompt, max_tokens, terms=owner, **more))


def begin_order(where: World, num: int) -> list[str]:
    """The tenants of the first `num` requests to begin."""
    begun: dict[str, None] = {}
    while len(begun) < num:
        where.step()
        begun |= {b.request.request_id: None for b in where.plans[-1].begins}
    return [name.partition("-")[0] for name in begun][:num]


def test_a_tenant_that_floods_the_queue_delays_only_itself():
    """Equal weights: those who come later get every other turn, not the end of the line."""
    where = world()
    for i in range(40):
        ask(where, f"flood-{i}", terms("flood"))
    for i in range(10):
        ask(where, f"late-{i}", terms("late"))
    first = begin_order(where, 22)
    assert 9 <= Counter(first)["late"] <= 11
    where.run()
    where.verify()


def test_weights_divide_the_tokens():
    where = world()
    for i in range(60):
        ask(where, f"heavy-{i}", terms("heavy", weight=3))
        ask(where, f"light-{i}", terms("light"))
    counts = Counter(begin_order(where, 40))
    assert 28 <= counts["heavy"] <= 32
    where.run()
    where.verify()


def test_long_answers_count_like_many_short_ones():
    where = world(max_num_seqs=1)
    for i in range(30):
        ask(where, f"long-{i}", terms("long"), max_tokens=40)
    for i in range(60):
        ask(where, f"short-{i}", terms("short"), max_tokens=4)
    counts = Counter(begin_order(where, 30))
    # a long one takes 8 + 2 * 40 = 88 tokens, a short one 16
    assert 4 <= counts["long"] <= 5
    where.run()
    where.verify()


def test_who_was_away_is_not_owed_for_it():
    where = world(max_num_seqs=1)
    ask(where, "new-x", terms("new"))
    where.run()
    for i in range(30):
        ask(where, f"old-{i}", terms("old"))
    begin_order(where, 15)
    for i in range(20):
        ask(where, f"new-{i}", terms("new"))
    assert Counter(begin_order(where, 10))["new"] <= 6
    where.run()
    where.verify()


def test_a_tenant_of_better_priority_goes_first_but_not_for_ever():
    where = world(max_num_seqs=1, ageing_s=0.5)
    for i in range(5):
        ask(where, f"batch-{i}", terms("batch", priority=1))
    for i in range(40):
        ask(where, f"user-{i}", terms("user"))
    order = begin_order(where, 45)
    assert order[:5] == ["user"] * 5
    where.run()
    where.verify()
    where = world(max_num_seqs=1, ageing_s=0.5)
    ask(where, "batch-0", terms("batch", priority=1))
    ask(where, "user-x", terms("user"))
    for i in range(60):  # one waits at all times, as many come as can be served
        ask(where, f"user-{i}", terms("user"))
        for _ in range(4):
            where.step()
    where.run()
    waited = where.timing("batch-0").first_scheduled_s - where.timing("batch-0").arrival_s
    assert 0.3 < waited < 1.0  # a level is worth half a second


def test_levels_are_monotone_and_bounded():
    found = [levels_of(p) for p in (-(2**31), -1000, -2, -1, 0, 1, 2, 30, 1000, 2**31)]
    assert found == sorted(found)
    assert (levels_of(0), levels_of(1)) == (0.0, 1.0)
    assert abs(found[0]) <= MOST_LEVELS
    assert found[-1] <= MOST_LEVELS


def test_the_worst_priority_of_a_client_waits_a_bounded_time():
    where = world(max_num_seqs=1, ageing_s=0.01)
    ask(where, "last", Terms(), priority=2**31 - 1)
    n = 0
    while "last" not in where.last:
        for _ in range(2):  # more than can be served
            ask(where, f"r{n}", Terms(), priority=-(2**31 - 1), max_tokens=1)
            n += 1
        where.step()
        assert n < 2000
    waited = where.timing("last").first_scheduled_s - where.timing("last").arrival_s
    assert waited < 2 * MOST_LEVELS * 0.01 + 1.5
    where.run()
    where.verify()


def test_no_more_of_a_tenant_run_than_may():
    where = world(max_num_seqs=4)
    for i in range(8):
        ask(where, f"a-{i}", terms("a", max_running=1))
    for i in range(2):
        ask(where, f"b-{i}", terms("b"))
    where.step()
    assert [b.request.request_id for b in where.plans[0].begins] == ["a-0", "b-0", "b-1"]
    while where.scheduler.has_work:
        where.step()
        owners = [s.request.terms.tenant.name for s in where.scheduler._roster.running]
        assert owners.count("a") <= 1
    where.verify()
    waits = dict(where.timing("a-7").waits)
    assert waits["tenant_limit"] > 0


def test_a_share_of_the_pool_is_kept_and_the_rest_stays_free():
    where = World(num_blocks=20, block_size=4, limits=ScheduleLimits(max_num_seqs=8))
    with pytest.raises(CapacityError, match=r"'a' may hold 40 \(kv_share of its key\)"):
        ask(where, "a-big", terms("a", kv_share=0.5), length=30, max_tokens=12)
    for i in range(5):
        ask(where, f"a-{i}", terms("a", kv_share=0.5), length=9, max_tokens=24, seed=i)
    preempted, most = 0, 0
    while where.scheduler.has_work:
        where.step()
        running = where.scheduler._roster.running
        most = max(most, sum(where.ledger.num_blocks_of(s.request_id) for s in running))
        preempted = where.scheduler.stats().preemptions
    assert most <= 10
    assert preempted > 0
    where.verify()


def test_a_tenant_may_queue_so_many():
    where = world(max_num_seqs=2)
    for i in range(5):
        ask(where, f"a-{i}", terms("a", max_queued=3))
    with pytest.raises(OverloadError, match=r"5 requests of 'a' wait, at most 3 may"):
        ask(where, "a-5", terms("a", max_queued=3))
    ask(where, "b-0", terms("b", max_queued=3))
    where.run()
    where.verify()


def test_tokens_a_minute_are_refused_with_the_time_until_there_are_some():
    where, owner = world(), terms("a", tokens_per_minute=120)
    ask(where, "a-0", owner, length=100, max_tokens=40)
    where.run()
    with pytest.raises(OverloadError, match=r"120 tokens a minute .* has used 139") as caught:
        ask(where, "a-1", owner)
    wait_s = caught.value.retry_after_s
    where.clock.advance(wait_s - 0.6)
    with pytest.raises(OverloadError):
        ask(where, "a-1", owner)
    where.clock.advance(0.7)
    ask(where, "a-1", owner)
    ask(where, "b-1", terms("b"))
    where.run()
    where.verify()
    assert 0 < wait_s <= MAX_RETRY_S


def test_who_refuses_spends_nothing():
    where = world(max_num_seqs=1, max_queued_requests=1)
    owner = terms("a", tokens_per_minute=60)
    ask(where, "b-0", terms("b"))
    ask(where, "a-0", owner, length=8)
    for _ in range(20):
        with pytest.raises(OverloadError, match="max_queued_requests"):
            ask(where, "a-1", owner, length=50)
    where.run()
    ask(where, "a-2", owner, length=40)
    where.run()
    where.verify()


def test_a_full_queue_has_room_for_whom_it_owes_a_part():
    """Longest queue drop: the flood's last request leaves, with an error that says so."""
    where = world(max_num_seqs=1, max_queued_requests=8)
    for i in range(9):
        ask(where, f"flood-{i}", terms("flood"))
    with pytest.raises(OverloadError):
        ask(where, "flood-9", terms("flood"))
    for i in range(4):
        ask(where, f"late-{i}", terms("late"))
    with pytest.raises(OverloadError):
        ask(where, "late-4", terms("late"))
    ended = where.scheduler.expire()
    where.scheduler.check()
    assert [d.request_id for d in ended] == ["flood-8", "flood-7", "flood-6", "flood-5"]
    for delta in ended:
        assert delta.finish is FinishReason.ERROR
        assert isinstance(_error_of(delta.error or "", delta.error_kind), OverloadError)
        del where.requests[delta.request_id]
    assert where.scheduler.stats().waiting == 9
    where.run()
    where.verify()


def test_prompt_tokens_are_bounded_the_same_way():
    where = world(max_num_seqs=1, max_queued_tokens=100)
    for i in range(10):
        ask(where, f"flood-{i}", terms("flood"), length=10)
    with pytest.raises(OverloadError, match="max_queued_tokens"):
        ask(where, "flood-x", terms("flood"), length=10)
    with pytest.raises(OverloadError, match="max_queued_tokens"):
        ask(where, "late-0", terms("late"), length=60)
    ask(where, "late-1", terms("late"), length=45)
    ended = where.scheduler.expire()
    assert [d.request_id for d in ended] == [f"flood-{i}" for i in (9, 8, 7, 6, 5)]
    for delta in ended:
        del where.requests[delta.request_id]
    where.run()
    where.verify()


def test_deadlines_end_those_who_wait_and_those_who_run():
    where = world(max_num_seqs=1)
    now = where.clock.now_s()
    ask(where, "runs", terms("a", now + 0.105), max_tokens=60)
    ask(where, "waits", terms("a", now + 0.025))
    ask(where, "fine", terms("a", now + 100.0))
    seen = {}
    while where.scheduler.has_work:
        for delta in where.scheduler.expire():
            seen[delta.request_id] = (round(where.clock.now_s() - now, 3), delta)
            where.scheduler.check()
            del where.requests[delta.request_id]
        where.step()
    assert {name: at for name, (at, _) in seen.items()} == {"waits": 0.03, "runs": 0.11}
    for _, delta in seen.values():
        assert isinstance(_error_of(delta.error or "", delta.error_kind), DeadlineError)
    where.verify()


def test_finished_deadlines_are_forgotten():
    where = world()
    for i in range(1000):
        ask(where, f"r{i}", terms("a", 1e6))
        where.run()
    assert len(where.scheduler._deadlines._heap) < 100


def test_a_wait_that_is_too_long_is_an_overload():
    where = world(max_num_seqs=1, max_queue_s=0.05)
    ask(where, "a", Terms(), max_tokens=20)
    ask(where, "b", Terms())
    while where.scheduler.has_work:
        where.step()
        ended = where.scheduler.expire()
        for delta in ended:
            assert isinstance(_error_of(delta.error or "", delta.error_kind), OverloadError)
            assert "max_queue_s = 0.05" in (delta.error or "")
            del where.requests[delta.request_id]
    assert set(where.last) == {"a"}
    where.verify()


def test_retry_after_is_the_queue_over_the_measured_rate():
    where = world(max_num_seqs=1, max_queued_requests=10)
    for i in range(10):
        ask(where, f"r{i}", Terms())
        where.run()
    where.clock.advance(10_000)  # idle time does not make the engine slower
    for i in range(11):
        ask(where, f"s{i}", Terms())
    with pytest.raises(OverloadError) as caught:
        where.add(*(make_request(f"t{i}", [1, i], 4) for i in range(5)))
    # each request takes four steps of 0.01 s; five must leave
    assert caught.value.retry_after_s == pytest.approx(0.2, rel=0.25)


def test_a_full_server_does_not_compare_those_who_wait_in_every_step(monkeypatch):
    where = world()
    for i in range(2):
        ask(where, f"first-{i}", terms("first"), max_tokens=30)
    where.step()
    for i in range(50):
        ask(where, f"{i}-x", terms(str(i)))
    with monkeypatch.context() as patch:
        patch.setattr(FairLine, "_best", lambda *_: pytest.fail("compared"))
        for _ in range(10):
            where.step()
    where.run()
    where.verify()


def test_one_that_had_to_leave_is_told_so_when_all_others_are_gone():
    where = world(max_num_seqs=1, max_queued_requests=3)
    for i in range(4):
        ask(where, f"flood-{i}", terms("flood"))
    ask(where, "late", terms("late"))
    for name in ("flood-0", "flood-1", "flood-2", "late"):
        where.abort(name)
    assert where.scheduler.has_work
    assert [delta.request_id for delta in where.scheduler.expire()] == ["flood-3"]
    assert not where.scheduler.has_work
