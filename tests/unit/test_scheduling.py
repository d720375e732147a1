"""What users met in other engines, as schedules: pressure, cancels, siblings, overload."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headrace.base.errors import (
    CapacityError,
    ConfigError,
    ContextLengthError,
    InvariantError,
    OverloadError,
    RequestError,
)
from headrace.base.ids import RequestId
from headrace.base.request import FinishReason
from headrace.base.step import RowResult, StepResult
from headrace.engine.sim import SimCost
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.planner import MAX_BYPASSES
from tests.kit.host import World, choices, crowded_prompt, make_request


def limits(**more) -> ScheduleLimits:
    settings: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 64} | more
    return ScheduleLimits(**settings)


# ---- pool and context limits ----


def test_what_never_fits_is_refused_with_numbers_and_blocks_nobody():
    """KV-1: refused at the door with need and capacity; those behind it run."""
    world = World(num_blocks=10, block_size=16)
    with pytest.raises(CapacityError, match=r"161 tokens, the pool holds 160"):
        world.add(make_request("big", range(161), max_tokens=1))
    with pytest.raises(CapacityError, match=r"need KV memory for 169 tokens"):
        world.add(make_request("grows", range(100), max_tokens=70))
    for length in (159, 160):
        world.add(make_request(f"fits{length}", range(length), max_tokens=1))
    world.add(make_request("small", [1], max_tokens=1))
    world.run()
    world.verify()


def test_context_limit_and_malformed_requests():
    world = World(num_blocks=10, block_size=16, limits=limits(max_model_len=20))
    with pytest.raises(ContextLengthError, match=r"need 21 tokens, the context limit is 20"):
        world.add(make_request("a", range(17), max_tokens=4))
    with pytest.raises(RequestError, match="empty"):
        world.add(make_request("a", []))
    world.add(make_request("a", range(16), max_tokens=4))
    with pytest.raises(RequestError, match="in use"):
        world.add(make_request("a", [1]))
    with pytest.raises(ConfigError, match="max_num_seqs must be positive"):
        limits(max_num_seqs=0)


def test_two_that_outgrow_the_pool_together_both_finish_right():
    """SC-4, SC-9."""
    world = World(num_blocks=10, block_size=16)
    world.add(make_request("a", range(60), max_tokens=36, seed=1))
    world.add(make_request("b", range(100, 160), max_tokens=36, seed=2))
    world.run()
    world.verify()
    assert world.last["a"].num_preempted == 0


def test_four_that_exceed_the_pool_all_finish():
    """SC-9: pressure leads to preemption, never to failing."""
    world = World(num_blocks=10, block_size=4)
    for i in range(4):
        world.add(make_request(f"r{i}", range(i, i + 8), max_tokens=24, seed=i))
    world.run()
    world.verify()
    assert all(d.finish is FinishReason.LENGTH for d in world.last.values())


def test_twenty_requests_on_ten_blocks_finish_without_thrash():
    """SC-4: a bound on preemptions per request."""
    world = World(num_blocks=10, block_size=4, limits=limits(max_num_seqs=8))
    for i in range(20):
        world.add(make_request(f"r{i}", [i, *range(6)], max_tokens=20, seed=i))
    world.run()
    world.verify()
    assert max(d.num_preempted for d in world.last.values()) <= 5
    order = [world.timing(f"r{i}").first_token_s for i in range(20)]
    assert order == sorted(order)


def test_prompt_logprobs_come_once_over_a_preemption():
    crowded_prompt()


# ---- cancel ----


def test_abort_is_ordinary_in_every_state_and_idempotent():
    """KV-2, KV-5: one way out, from every state, and going twice does no harm."""
    world = World(num_blocks=12, block_size=4, limits=limits(max_num_seqs=2, max_num_batched_tokens=8))
    world.add(make_request("decoding", range(4), max_tokens=20))
    world.step()
    world.add(make_request("prefilling", range(20), max_tokens=4, logprobs=0))
    world.step()
    world.add(*choices(make_request("queued", range(9), max_tokens=3), 3, Random(0)))
    world.step()
    for name in ("queued", "prefilling", "decoding", "queued.1", "queued.2"):
        world.abort(name)
        world.scheduler.check()
        assert world.scheduler.finish(RequestId(name), FinishReason.ABORT) is None
    assert world.scheduler.finish(RequestId("unknown"), FinishReason.ABORT) is None
    assert world.scheduler.stats().blocks_held == 0
    assert not world.scheduler.has_work
    world.verify()


def test_abort_of_a_preempted_sequence_and_of_the_last_step():
    world = World(num_blocks=10, block_size=1, limits=limits(max_num_batched_tokens=16))
    world.add(make_request("old", [1, 2], max_tokens=9))
    world.step()
    world.add(make_request("new", [3, 4], max_tokens=6, seed=5))
    while world.scheduler.stats().preemptions == 0:
        world.step()
    world.abort("new")
    plan = world.scheduler.plan()
    assert plan is not None
    late = world.executor.run(plan)
    world.abort("old")
    assert world.scheduler.commit(late).deltas == ()
    assert world.scheduler.stats().late_results == 1
    world.verify()


def test_a_thousand_random_cancels_leave_nothing():
    """KV-4, KV-5: cancels at any moment; the books add up after every step, and nothing stays held."""
    rng = Random(5)
    world = World(num_blocks=16, block_size=2, num_drafts=2, vocab=5)
    for i in range(250):
        base = make_request(f"r{i}", [rng.randrange(2) for _ in range(6)], max_tokens=6, seed=i, logprobs=0)
        world.add(*choices(base, 4, rng))
        for _ in range(3):
            world.step()
            world.abort(rng.choice([f"r{i}", f"r{i}.1", f"r{i}.2", f"r{rng.randrange(i + 1)}.3"]))
    world.run()
    world.verify()


def test_results_of_an_unknown_or_committed_step_are_refused():
    world = World()
    world.add(make_request("a", [1]))
    plan = world.scheduler.plan()
    assert plan is not None
    result = world.executor.run(plan)
    with pytest.raises(InvariantError, match="no result for 'a'"):
        world.scheduler.commit(StepResult(step=plan.step, rows=()))
    with pytest.raises(InvariantError, match="committed already"):
        world.scheduler.commit(result)


def test_a_failed_row_ends_its_sequence_only_and_is_not_published():
    """SA-9."""
    world = World(num_blocks=10, block_size=4)
    world.add(make_request("bad", range(9)), make_request("good", range(20, 29)))
    plan = world.scheduler.plan()
    assert plan is not None
    result = world.executor.run(plan)
    rows = (RowResult(slot=result.rows[0].slot, lease=result.rows[0].lease, error="NaN"), result.rows[1])
    for delta in world.scheduler.commit(StepResult(step=plan.step, rows=rows)).deltas:
        world.hear(delta)
    assert world.last["bad"].finish is FinishReason.ERROR
    assert world.last["bad"].error == "NaN"
    del world.requests["bad"], world.last["bad"]
    world.run()
    world.verify()
    world.add(make_request("again", range(9)))
    world.run()
    assert world.cached["again"] == 0


# ---- siblings ----


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_siblings_share_the_prompt_and_equal_their_solo_runs(length):
    """KV-6: prompt lengths around a block edge."""
    world = World(num_blocks=40, block_size=16)
    world.add(*choices(make_request("r", range(length), max_tokens=20), 4, Random(0)))
    world.run()
    world.verify()
    assert sum(world.timing(n).prefill_tokens for n in world.last) == length + 3
    assert len({world.tokens[n] for n in world.tokens}) == 4


@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_siblings_live_on_when_the_leader_is_aborted(when):
    world = World(num_blocks=20, block_size=4, limits=limits(max_num_seqs=2, max_num_batched_tokens=6))
    world.add(*choices(make_request("r", range(12), max_tokens=6), 4, Random(0)))
    for _ in range(when):
        world.step()
    world.abort("r")
    world.run()
    world.verify()
    assert sum(d.finish is FinishReason.LENGTH for d in world.last.values()) == 3


# ---- overload ----


def test_the_queue_is_bounded_in_requests_and_says_when_to_come_back():
    """SC-5: bounded in requests, n counts n."""
    world = World(limits=limits(max_queued_requests=4))
    refused = []
    for i in range(20):
        try:
            world.add(make_request(f"r{i}", [i]))
        except OverloadError as error:
            refused.append(error.retry_after_s)
    assert len(refused) == 12
    assert all(0.1 <= s <= 60 for s in refused)
    world.run()
    world.verify()
    with pytest.raises(OverloadError):
        world.add(*choices(make_request("n", [1]), 9, Random(0)))
    assert not world.scheduler.has_work


def test_the_queue_is_bounded_in_tokens_but_a_free_slot_takes_any():
    """SC-5: bounded in prompt tokens."""
    world = World(num_blocks=100, limits=limits(max_num_seqs=1, max_queued_tokens=50))
    world.add(make_request("a", range(100)))
    with pytest.raises(OverloadError, match="100 prompt tokens wait"):
        world.add(make_request("b", range(10)))
    world.step()
    world.add(make_request("b", range(50)))
    with pytest.raises(OverloadError, match="at most 50"):
        world.add(make_request("c", [1]))
    world.run()
    world.verify()


def test_a_longest_wait_can_be_set():
    """SC-5: bounded in time."""
    world = World(limits=limits(max_num_seqs=1, max_queue_s=0.05))
    world.add(make_request("a", [1], max_tokens=20))
    world.step()
    world.add(make_request("b", [1]))
    assert world.scheduler.expire() == ()
    assert world.scheduler.next_wakeup_s() == pytest.approx(0.05)
    world.clock.advance(0.06)
    (delta,) = world.scheduler.expire()
    assert delta.finish is FinishReason.ERROR
    assert "max_queue_s" in (delta.error or "")


# ---- who runs when ----


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 39, 40])
def test_any_chunk_size_gives_the_one_shot_result(chunk):
    """SC-1."""
    world = World(num_blocks=40, block_size=16, limits=limits(max_num_batched_tokens=chunk))
    world.add(make_request("decode", [5], max_tokens=12))
    world.step()
    for i in range(2):
        world.add(make_request(f"prefill{i}", range(i, i + 40), max_tokens=3, seed=i))
    world.run()
    world.verify()


def test_rows_with_nothing_scheduled_say_nothing():
    """SC-2."""
    world = World(num_blocks=60, limits=limits(max_num_seqs=16, max_num_batched_tokens=8))
    for i in range(14):
        world.add(make_request(f"short{i}", [i, i], max_tokens=5, seed=i))
    for i in range(2):
        world.add(make_request(f"long{i}", range(40), max_tokens=3, seed=i))
    world.run()
    world.verify()
    assert all(len(world.times[n]) == len(world.tokens[n]) for n in world.tokens)


def test_a_long_prompt_does_not_freeze_those_who_decode():
    """SC-3: the gap between tokens is bounded in time."""
    cost = SimCost(step_s=0.005, decode_row_s=0.005, prefill_token_s=0.001, context_token_s=1e-6)
    world = World(
        num_blocks=600,
        block_size=16,
        cost=cost,
        limits=limits(max_num_seqs=8, max_num_batched_tokens=512, prefill_step_s=0.1),
    )
    world.add(make_request("victim", range(4), max_tokens=200))
    for _ in range(5):
        world.step()
    for i in range(4):
        world.add(make_request(f"attacker{i}", range(i, i + 1000), max_tokens=2, seed=i))
    world.run()
    gaps = [b - a for a, b in pairwise(world.times["victim"])]
    assert max(gaps) < 0.1 * 1.2
    assert max(gaps) > 0.05, "the bound is used, not undercut"
    whole = World(num_blocks=600, block_size=16, cost=cost, limits=limits(max_num_batched_tokens=512))
    whole.add(make_request("alone", range(1000), max_tokens=1))
    whole.run()
    assert len(whole.plans) == 2, "with nobody decoding the whole budget is used"


def test_unchunked_prompts_run_whole_alone_when_long_and_decoding_goes_on():
    world = World(
        num_blocks=60, block_size=4, limits=limits(max_num_batched_tokens=16, chunked_prefill=False)
    )
    world.add(make_request("decode", [1], max_tokens=12))
    world.step()
    for i in range(3):
        world.add(make_request(f"long{i}", range(i, i + 40), max_tokens=2, seed=i))
    world.run()
    world.verify()
    long_rows = [(p, r) for p in world.plans for r in p.rows if r.count > 16]
    assert len(long_rows) == 3
    assert all(len(p.rows) == 1 for p, _ in long_rows)
    gaps = [b.step - a.step for a, b in pairwise(p for p in world.plans if any(r.slot == 0 for r in p.rows))]
    assert max(gaps[:10]) <= 2


def test_small_ones_overtake_a_big_one_but_not_for_ever():
    """SC-6: both bounds, and order kept among the others."""
    world = World(num_blocks=20, block_size=4, limits=limits(max_num_seqs=8))
    world.add(make_request("holder", range(20), max_tokens=40))
    world.step()
    world.add(make_request("big", range(100, 160), max_tokens=8))
    for i in range(60):
        world.add(make_request(f"s{i}", [i], max_tokens=2, seed=i))
    world.run()
    world.verify()
    first = {n: world.timing(n).first_scheduled_s for n in world.last}
    overtook = [i for i in range(60) if first[f"s{i}"] < first["big"]]
    assert overtook == list(range(MAX_BYPASSES))
    assert first["s0"] < world.timing("holder").finished_s


def test_priority_then_arrival():
    world = World(limits=limits(max_num_seqs=1))
    for name, priority in (("a", 0), ("b", 1), ("c", -1), ("d", 0)):
        world.add(make_request(name, [1], priority=priority))
    world.run()
    assert list(world.last) == ["c", "a", "d", "b"]


def test_waits_are_booked_by_reason():
    world = World(num_blocks=40, limits=limits(max_num_seqs=1))
    world.add(make_request("a", [1], max_tokens=10))
    world.step()
    world.add(make_request("b", [2], max_tokens=1))
    world.run()
    waits = dict(world.timing("b").waits)
    assert waits["slots"] == pytest.approx(0.09, abs=0.011)
    assert sum(waits.values()) == pytest.approx(
        world.timing("b").first_scheduled_s - world.timing("b").arrival_s
    )


# ---- baselines ----


def test_the_three_policies_give_the_same_tokens_and_different_waste():
    """SC-7."""
    wasted, tokens = {}, {}
    for policy in ("continuous", "static", "dynamic"):
        world = World(num_blocks=60, policy=policy, settings={"dynamic_size": 4, "dynamic_window_ms": 50.0})
        for i in range(20):
            world.add(make_request(f"r{i}", [i, 1, 2], max_tokens=1 + i % 7, seed=i))
        world.run()
        world.verify()
        wasted[policy] = world.scheduler.stats().wasted_slot_steps
        tokens[policy] = dict(world.tokens)
    assert tokens["static"] == tokens["continuous"] == tokens["dynamic"]
    assert wasted["static"] > wasted["continuous"] == 0
    assert wasted["dynamic"] > 0


def test_a_lone_request_waits_the_dynamic_window():
    world = World(policy="dynamic", settings={"dynamic_size": 3, "dynamic_window_ms": 50.0})
    world.add(make_request("a", [1]))
    assert world.scheduler.plan() is None
    assert world.scheduler.next_wakeup_s() == pytest.approx(0.05)
    world.run()
    assert dict(world.timing("a").waits)["policy_window"] == pytest.approx(0.05, abs=1e-3)
    for i in range(3):
        world.add(make_request(f"b{i}", [i]))
    plan = world.scheduler.plan()
    assert plan is not None
    assert len(plan.rows) == 3


def test_a_static_batch_admits_nobody_until_its_last_member_is_done():
    world = World(policy="static")
    world.add(make_request("short", [1], max_tokens=1), make_request("long", [2], max_tokens=9))
    world.step()
    world.add(make_request("late", [3], max_tokens=1))
    world.run()
    assert world.timing("late").first_scheduled_s >= world.timing("long").finished_s


def test_finish_from_outside_releases_everything():
    world = World()
    world.add(make_request("a", range(6), max_tokens=20))
    for _ in range(3):
        world.step()
    delta = world.scheduler.finish(RequestId("a"), FinishReason.STOP)
    assert delta is not None
    assert delta.finish is FinishReason.STOP
    assert delta.timing is not None
    assert world.scheduler.finish(RequestId("a"), FinishReason.STOP) is None
    assert not world.scheduler.has_work


def test_kv6_a_reused_id_is_not_the_leader():
    """A sibling that outlives its leader shares nothing with a later request of the leader's id."""
    world = World(num_blocks=40, block_size=4, limits=limits(max_num_seqs=2))
    world.add(make_request("other", range(30, 40), max_tokens=12))
    world.step()
    world.add(
        make_request("abc", range(10), max_tokens=1, seed=1),
        make_request("abc.1", range(10), max_tokens=3, seed=2, leader=RequestId("abc")),
    )
    while "abc" not in world.last:
        world.step()
    del world.last["abc"], world.requests["abc"], world.tokens["abc"]
    world.add(make_request("abc", range(50, 60), max_tokens=40, seed=3, priority=-1))
    world.run()
    world.verify()
