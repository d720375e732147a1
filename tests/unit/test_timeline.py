"""Timelines on a fake clock: a delay planted in a part lands there and nowhere else; sums are whole."""

from random import Random

import pytest
from rich.color import Color

from headrace.base.ids import AdapterId, SlotId
from headrace.base.metrics.timeline import Part, PartName, PrefixResult, Timeline
from headrace.base.step import Row, StepResult, TokenLogprobs
from headrace.base.terms import Tenant, Terms
from headrace.cli.commands.explain import LOOKS, show
from headrace.engine.sim import SimCost
from headrace.host.kv.table import Grant
from headrace.host.sched.batch import Batch, StepNotes
from headrace.host.sched.cost import StepCost
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.sequence import WaitReason
from headrace.host.timeline.explain import explain
from headrace.host.timeline.times import MOST_OTHERS, Prefill, StepTime, Times, prefill_share
from tests.kit.host import Case, World, make_request, run_case
from tests.unit.test_rows import sequence

STEP_S = 0.01


def world(limits: ScheduleLimits | None = None, **more) -> World:
    more.setdefault("cost", SimCost(step_s=STEP_S))
    more.setdefault("num_blocks", 64)
    return World(limits=limits or ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=64), **more)


def told(world: World, name: str) -> Timeline:
    timeline = world.timing(name).timeline
    assert timeline is not None
    check_sum(timeline)
    return timeline


def check_sum(timeline: Timeline) -> None:
    assert sum(p.seconds for p in timeline.parts) == pytest.approx(timeline.e2e_s, rel=1e-9, abs=1e-9)
    assert all(p.seconds > 0 for p in timeline.parts)
    assert len({(p.name, p.reason) for p in timeline.parts}) == len(timeline.parts)


def parts(timeline: Timeline) -> dict[str, float]:
    return {f"{p.name}:{p.reason}" if p.reason else p.name.value: p.seconds for p in timeline.parts}


def approx(expected: dict[str, float]):
    return pytest.approx(expected, rel=1e-9)


# ---- a delay in each part ----


def test_alone_a_request_is_prefill_and_decode() -> None:
    w = world()
    w.add(make_request("a", [1, 2, 3], max_tokens=4))
    w.run()
    assert parts(told(w, "a")) == approx({"prefill": STEP_S, "decode": 3 * STEP_S})


def test_a_delay_before_the_engine_is_queue_step_and_that_of_a_grammar_is_its_own() -> None:
    w = world()
    w.clock.advance(5.0)
    first = make_request("a", [1], max_tokens=1, arrival_s=w.clock.now_s() - 2.0)
    w.add(first, is_held=True)
    w.clock.advance(1.5)
    timeline = w.scheduler.timeline(first.request_id)
    assert timeline is not None
    assert parts(timeline) == approx({"queue:step": 2.0, "queue:grammar": 1.5})
    w.scheduler.let_go([first.request_id])
    w.run()
    assert parts(told(w, "a")) == approx({"queue:step": 2.0, "queue:grammar": 1.5, "prefill": STEP_S})


def test_waiting_for_a_slot_is_queue_slots() -> None:
    w = world(ScheduleLimits(max_num_seqs=1))
    w.add(make_request("a", [1, 2], max_tokens=10))
    w.add(make_request("b", [3, 4], max_tokens=2))
    w.run()
    assert parts(told(w, "b")) == approx({"queue:slots": 10 * STEP_S, "prefill": STEP_S, "decode": STEP_S})


def test_waiting_for_blocks_is_queue_blocks() -> None:
    w = world(num_blocks=4, block_size=4)
    w.add(make_request("a", range(9), max_tokens=6))
    w.step()
    w.add(make_request("b", range(20, 29), max_tokens=2))
    w.run()
    assert parts(told(w, "b")) == approx({"queue:blocks": 5 * STEP_S, "prefill": STEP_S, "decode": STEP_S})


def test_waiting_for_room_in_steps_is_token_budget_in_the_queue_and_in_a_slot() -> None:
    w = world(ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=4), cost=SimCost(prefill_token_s=0.1))
    w.add(make_request("a", range(8), max_tokens=1))
    w.add(make_request("b", range(20, 24), max_tokens=1))
    w.run()
    assert parts(told(w, "a")) == approx({"prefill": 0.8})
    assert parts(told(w, "b")) == approx({"queue:token_budget": 0.8, "prefill": 0.4})
    w = world(ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=2))
    for name in "abc":
        w.add(make_request(name, [ord(name)], max_tokens=6))
    w.run()
    waits = sum(told(w, name).seconds_of(PartName.QUEUE, "token_budget") for name in "abc")
    steps = len(w.plans)
    rows = sum(len(plan.rows) for plan in w.plans)
    in_line = sum(told(w, name).e2e_s for name in "abc")
    assert waits == pytest.approx(in_line - rows * STEP_S)
    assert steps * 2 >= rows


@pytest.mark.parametrize(
    "reason", [WaitReason.TOKENS, WaitReason.BLOCKS, WaitReason.TENANT, WaitReason.BEAMS]
)
def test_a_slot_without_a_row_says_why(reason: WaitReason) -> None:
    idle, busy = sequence(2, max_tokens=8), sequence(2, max_tokens=8)
    busy.lease = 8
    batch = Batch(step=1, left=10, notes=StepNotes(planned_s=1.0))
    batch.add_decode(busy, Grant())
    if reason is WaitReason.BEAMS:
        idle.offer = TokenLogprobs(token_id=1, logprob=-1.0, rank=1)
    elif reason is not WaitReason.TOKENS:
        batch.notes.held[idle.lease] = reason
    for seq in (idle, busy):
        seq.times.enter(1.0, 0.0)
    batch.time(StepResult(step=1, rows=(), seconds=0.5), 1.75, StepCost(), [busy, idle])
    assert (idle.times.stalls, idle.times.host_s) == ({reason.value: 0.5}, 0.25)
    assert busy.times.stalls == {}


def test_making_drafts_is_no_part_of_what_prompts_took() -> None:
    """A step of 1 s, half of it for drafts; a row decodes in 0.25 s: the other 0.25 s are the prompt's."""
    batch = Batch(step=1, left=10, notes=StepNotes(planned_s=1.0))
    batch.add_decode(sequence(2, max_tokens=8), Grant())
    batch.notes.prefills[99] = Prefill("other", "", 4)
    cost = StepCost()
    cost.observe(0.25, 0, 1)
    result = StepResult(step=1, rows=(), seconds=1.0, draft_s=0.5)
    time = batch.time(result, 2.0, cost, [])
    assert (time.share, time.draft_share) == (0.5, 0.5)


def test_waiting_for_ones_tenant_is_tenant_limit() -> None:
    terms = Terms(tenant=Tenant(name="t", max_running=1))
    w = world()
    w.add(make_request("a", [1], max_tokens=5, terms=terms))
    w.add(make_request("b", [2], max_tokens=1, terms=terms))
    w.run()
    assert parts(told(w, "b")) == approx({"queue:tenant_limit": 5 * STEP_S, "prefill": STEP_S})


def test_who_is_overtaken_for_its_priority_waits_for_it_from_then_on() -> None:
    w = world(ScheduleLimits(max_num_seqs=1))
    w.add(make_request("a", [1], max_tokens=5))
    w.step()
    w.add(make_request("b", [2], max_tokens=1))
    w.step()
    w.add(make_request("urgent", [3], max_tokens=3, priority=-1))
    w.add(make_request("later", [4], max_tokens=1))
    w.run()
    first = {"queue:slots": 4 * STEP_S, "queue:priority": 3 * STEP_S, "prefill": STEP_S}
    assert parts(told(w, "b")) == approx(first)
    assert "waited for a slot" in explain(told(w, "b"))
    assert parts(told(w, "urgent")) == approx(
        {"queue:slots": 3 * STEP_S, "prefill": STEP_S, "decode": 2 * STEP_S}
    )
    # came after: who went before it by right has not overtaken it
    assert parts(told(w, "later")) == approx({"queue:slots": 7 * STEP_S, "prefill": STEP_S})


@pytest.mark.parametrize(("priority", "is_overtaken"), [(-1, True), (0, False)])
def test_a_key_of_better_priority_overtakes_and_a_fair_share_does_not(
    priority: int, is_overtaken: bool
) -> None:
    w = world(ScheduleLimits(max_num_seqs=1))
    mine = Terms(tenant=Tenant(name="mine"))
    theirs = Terms(tenant=Tenant(name="theirs", priority=priority, weight=9.0))
    w.add(make_request("a", [1], max_tokens=4, terms=mine))
    w.step()
    w.add(make_request("b", [2], max_tokens=1, terms=mine))
    w.add(make_request("c", [3], max_tokens=2, terms=theirs))
    w.run()
    assert w.times["c"][-1] < w.times["b"][0]  # either way it went first
    waited = {"queue:slots": 3 * STEP_S, "queue:priority": 2 * STEP_S}
    expected = waited if is_overtaken else {"queue:slots": 5 * STEP_S}
    assert parts(told(w, "b")) == approx(expected | {"prefill": STEP_S})


def test_waiting_for_the_policy_is_policy_window() -> None:
    w = world(policy="dynamic", settings={"dynamic_size": 4, "dynamic_window_ms": 500.0})
    w.add(make_request("a", [1], max_tokens=1))
    w.run()
    found = told(w, "a")
    assert found.seconds_of(PartName.QUEUE, "policy_window") == pytest.approx(0.5, abs=1e-4)
    assert found.seconds_of(PartName.PREFILL) == pytest.approx(STEP_S)


def test_a_choice_that_waits_for_its_leader_says_so_and_shares_its_prompt() -> None:
    w = world(ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=4))
    first = make_request("a", range(12), max_tokens=2)
    w.add(first, make_request("a.1", range(12), max_tokens=2, seed=1, leader=first.request_id))
    w.run()
    found = told(w, "a.1")
    assert found.seconds_of(PartName.QUEUE, "leader") == pytest.approx(3 * STEP_S)
    assert found.prefix is not None
    assert (found.prefix.outcome, found.prefix.cached_tokens) == ("leader", 11)


def test_what_others_prompts_take_of_decode_steps_is_theirs_by_name() -> None:
    """A step that only decodes is known to take 10 ms: what a mixed one takes above it is the prompt's."""
    cost = SimCost(step_s=STEP_S, prefill_token_s=0.02)
    w = world(ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=64, prefill_step_s=9.0), cost=cost)
    w.add(make_request("a", [1, 2], max_tokens=20))
    for _ in range(5):
        w.step()
    w.add(make_request("b", range(30, 40), max_tokens=1, terms=Terms(tenant=Tenant(name="t"))))
    w.run()
    a, b = told(w, "a"), told(w, "b")
    took = 10 * 0.02
    expected = {"prefill": STEP_S + 0.04, "decode": 19 * STEP_S, "others_prefill:b": took}
    assert parts(a) == approx(expected)
    assert a.others == (("b", "t", pytest.approx(took)),)
    assert parts(b) == approx({"prefill": STEP_S + took})


def test_prompts_that_share_a_step_share_its_time_by_tokens() -> None:
    w = world(cost=SimCost(prefill_token_s=0.1))
    w.add(make_request("a", range(3), max_tokens=1))
    w.add(make_request("b", range(10, 12), max_tokens=1))
    w.run()
    assert parts(told(w, "a")) == approx({"prefill": 0.3, "others_prefill:b": 0.2})
    assert parts(told(w, "b")) == approx({"prefill": 0.2, "others_prefill:a": 0.3})


def test_a_whole_prompt_in_a_step_of_its_own_is_others_prefill_for_those_who_pause() -> None:
    w = world(ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=8, chunked_prefill=False))
    w.add(make_request("a", [1], max_tokens=6))
    w.step()
    w.add(make_request("b", range(10, 18), max_tokens=1))
    w.run()
    assert parts(told(w, "a")) == approx(
        {"prefill": STEP_S, "decode": 5 * STEP_S, "others_prefill:b": STEP_S}
    )


def test_a_preempted_request_waits_and_computes_again_under_that_name() -> None:
    w = world(ScheduleLimits(max_num_batched_tokens=16), num_blocks=10, block_size=1, prefix_cache=False)
    w.add(make_request("old", [1, 2], max_tokens=9))
    w.step()
    w.add(make_request("new", [3, 4], max_tokens=6, seed=5))
    w.run()
    found = told(w, "new")
    assert found.num_preempted > 0
    assert found.seconds_of(PartName.PREEMPTED, "recomputing") == pytest.approx(STEP_S)
    assert found.seconds_of(PartName.PREEMPTED, "waiting") >= STEP_S
    assert found.seconds_of(PartName.PREFILL) == pytest.approx(STEP_S)
    assert found.seconds_of(PartName.DECODE) == pytest.approx(4 * STEP_S)
    assert not told(w, "old").seconds_of(PartName.PREEMPTED)


def test_steps_that_check_drafts_are_verify() -> None:
    w = world(num_drafts=2)
    w.executor.draft_hits = 256
    w.add(make_request("a", [1, 2], max_tokens=7))
    w.run()
    checked = sum(row.num_drafts > 0 for plan in w.plans for row in plan.rows)
    found = told(w, "a")
    assert checked > 0
    assert found.seconds_of(PartName.VERIFY) == pytest.approx(checked * STEP_S)
    assert found.seconds_of(PartName.DECODE) == pytest.approx((len(w.plans) - 1 - checked) * STEP_S)


def test_making_drafts_is_draft_for_who_gets_them_and_for_who_waits_beside() -> None:
    w = world(num_drafts=2, cost=SimCost(step_s=STEP_S, propose_s=0.1))
    w.add(make_request("a", [1, 2], max_tokens=7))
    w.run()
    found = told(w, "a")
    made = round(found.seconds_of(PartName.DRAFT) / 0.1)
    assert made > 0
    assert found.seconds_of(PartName.DRAFT, "") == pytest.approx(0.1 * made)
    assert found.e2e_s == pytest.approx(0.1 * made + STEP_S * len(w.plans))
    times, step = (
        Times(1.0),
        StepTime(now_s=3.0, planned_s=1.0, seconds=2.0, prefills={}, share=0.0, draft_share=0.25),
    )
    step.book(times, Row(slot=SlotId(0), lease=1, start=4, count=1))
    assert times.told({}, 0.0, 0.0) == (Part(PartName.DECODE, 1.5), Part(PartName.DRAFT, 0.5, "others"))
    asking, checking = Times(1.0), Times(1.0)
    step.book(asking, Row(slot=SlotId(0), lease=1, start=4, count=1, max_drafts=2))
    step.book(checking, Row(slot=SlotId(0), lease=1, start=4, count=3, num_drafts=2))
    assert [t.draft_s for t in (asking, checking)] == [0.5, 0.5]
    assert "drafts were made for others" in explain(
        Timeline(
            request_id="a",
            arrival_s=0,
            until_s=1,
            is_finished=True,
            parts=(Part(PartName.DRAFT, 1, "others"),),
        )
    )


def test_time_between_steps_and_around_their_computing_is_the_hosts() -> None:
    w = world()
    w.add(make_request("a", [1], max_tokens=3))
    w.step()
    w.clock.advance(0.3)  # before the next plan
    plan = w.scheduler.plan()
    assert plan is not None
    w.clock.advance(0.2)  # before it runs
    result = w.executor.run(plan)
    w.clock.advance(0.1)  # before its commit
    for delta in w.scheduler.commit(result).deltas:
        w.hear(delta)
    w.run()
    assert parts(told(w, "a")) == approx({"prefill": STEP_S, "decode": 2 * STEP_S, "host": 0.6})


def test_looking_for_the_prefix_is_booked_and_says_what_was_found() -> None:
    w = world(block_size=4)
    probe = w.ledger.probe

    def slow(*args, **more):
        w.clock.advance(0.25)
        return probe(*args, **more)

    w.ledger.probe = slow
    w.add(make_request("a", range(9), max_tokens=1))
    w.run()
    expected = {"prefix_lookup:no_common_prefix": 0.25, "prefill": STEP_S}
    assert parts(told(w, "a")) == approx(expected)


def test_an_aborted_request_tells_how_far_it_came() -> None:
    w = world(ScheduleLimits(max_num_seqs=1))
    w.add(make_request("a", [1], max_tokens=50))
    w.add(make_request("b", [2], max_tokens=50))
    for _ in range(3):
        w.step()
    w.clock.advance(0.5)
    w.abort("b")
    w.abort("a")
    assert parts(told(w, "a")) == approx({"prefill": STEP_S, "decode": 2 * STEP_S, "host": 0.5})
    assert parts(told(w, "b")) == approx({"queue:slots": 0.5 + 3 * STEP_S})


# ---- prefix results ----


def known_from(position: int):
    """The rest of the block of 4, of a prompt 0, 1, 2, ..., and no text yet."""
    return tuple(range(position, position - position % 4 + 4)), None


@pytest.mark.parametrize(
    ("second", "more", "outcome", "cached", "differs"),
    [
        ([*range(6), 99, 7, 8, 9], {}, "hit", 4, 6),
        ([*range(8), 50, 51], {}, "hit", 8, None),
        ([0, 1, 77, 3, 4, 5], {}, "shorter_than_block", 0, 2),
        ([60, 61, 62, 63, 64], {}, "no_common_prefix", 0, 0),
        (list(range(10)), {"salt": "s"}, "other_salt", 0, None),
        (list(range(10)), {"prompt_logprobs": 0}, "prompt_logprobs", 0, None),
    ],
)
def test_a_prefix_result_says_why_not_more_and_where_prompts_part(
    second, more, outcome, cached, differs
) -> None:
    w = world(block_size=4)
    w.add(make_request("a", range(8), max_tokens=2))
    w.run()
    w.add(make_request("b", second, max_tokens=1, **more))
    w.run()
    prefix = told(w, "b").prefix
    assert prefix is not None
    assert (prefix.outcome, prefix.cached_tokens, prefix.differs_at) == (outcome, cached, differs)
    assert prefix.prompt_tokens == len(second)
    if differs is not None:
        assert prefix.differs == (
            differs,
            tuple(second[:differs]),
            tuple(second[differs:][:8]),
            *known_from(differs),
        )


@pytest.mark.parametrize(
    ("prompt", "more"),
    [
        ([0, 1, 2, 99, 4, 5], {}),
        ([0, 99, 2, 3, 4, 5], {}),
        ([0, 1], {}),
        (list(range(10)), {"salt": "s"}),
        (list(range(10)), {"adapter": AdapterId("lora")}),
        (list(range(10)), {"kv_domain": "long"}),
        (list(range(100, 114)), {}),
    ],
)
def test_a_prefix_result_tells_nothing_of_another_tenants_prompts(prompt, more) -> None:
    """Otherwise a prompt could be read token by token; what the same tenant is told shows what is hidden."""
    seen: dict[str, tuple[object, ...]] = {}
    for owner in ("alice", "bob"):
        w = world(block_size=4, num_blocks=4)
        for name, start in (("evicted", 100), ("a", 0)):
            terms = Terms(tenant=Tenant(name=owner))
            w.add(make_request(name, range(start, start + 14), max_tokens=1, terms=terms))
            w.run()
        w.add(make_request("b", prompt, max_tokens=1, terms=Terms(tenant=Tenant(name="bob")), **more))
        w.run()
        prefix = told(w, "b").prefix
        assert prefix is not None
        seen[owner] = (prefix.outcome, prefix.cached_tokens, prefix.differs_at)
    assert seen["alice"] == ("no_common_prefix", 0, None)
    assert seen["bob"] != seen["alice"]


def test_a_prefix_result_after_a_shared_hit_tells_where_the_tenants_own_prompts_part() -> None:
    """Tenants share blocks, but what follows them is each one's own."""
    w = world(block_size=4)
    prompts = (("alice", [0, 1, 2, 3, 4, 5, 6, 7, 8]), ("bob", [0, 1, 2, 3, 4, 5, 60, 7, 8]))
    for owner, prompt in (*prompts, ("bob", [0, 1, 2, 3, 4, 5, 6, 70, 8])):
        w.add(make_request(f"{owner}{len(w.cached)}", prompt, terms=Terms(tenant=Tenant(name=owner))))
        w.run()
    results = [told(w, name).prefix for name in w.cached]
    assert [r and (r.outcome, r.cached_tokens, r.differs_at) for r in results] == [
        ("no_common_prefix", 0, None),
        ("hit", 4, None),
        ("hit", 4, 6),
    ]


def test_salts_of_one_tenant_part_prompts_that_agree_in_less_than_a_block() -> None:
    w = world(block_size=4)
    for name, prompt, salt in (("a", range(9), "s"), ("b", [0, 1, 99, 98, 97], "t")):
        w.add(make_request(name, prompt, salt=salt))
        w.run()
    prefix = told(w, "b").prefix
    assert prefix is not None
    assert (prefix.outcome, prefix.differs_at) == ("no_common_prefix", None)


def test_a_prefix_result_of_an_evicted_prefix_and_of_a_cache_that_is_off() -> None:
    w = world(num_blocks=4, block_size=4)
    for name, start in (("a", 0), ("b", 100), ("c", 0)):
        w.add(make_request(name, range(start, start + 13), max_tokens=1))
        w.run()
    prefix = told(w, "c").prefix
    assert prefix is not None
    assert prefix.outcome == "evicted"
    assert prefix.evicted_s == pytest.approx(STEP_S)  # in the step of the one before
    assert "its prefix had been evicted from the cache 10 ms before" in explain(told(w, "c"))
    other = told(w, "b").prefix
    assert other is not None
    assert other.evicted_s is None
    w = world(prefix_cache=False)
    w.add(make_request("a", range(9), max_tokens=1))
    w.run()
    prefix = told(w, "a").prefix
    assert prefix is not None
    assert prefix.outcome == "switched_off"


# ---- sums ----


@pytest.mark.parametrize("policy", ["continuous", "static", "dynamic"])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_parts_of_a_thousand_mixed_requests_add_up(policy: str, depth: int) -> None:
    """Preemption, drafts, beams, choices, aborts, pooling, tenants: nothing is lost, nothing twice."""
    total = 0
    for seed in range(60):
        rng = Random(f"{policy}-{depth}-{seed}")
        case = Case(
            policy=policy,
            depth=depth,
            num_drafts=rng.choice([0, 2]) if depth == 1 else 0,
            chunked=rng.random() < 0.7,
            block_size=rng.choice([1, 2, 4]),
            num_blocks=rng.choice([10, 14, 20]),
            budget=rng.choice([3, 6, 16]),
        )
        found = run_case(case, rng)
        for name in found.last:
            told(found, name)
        total += len(found.last)
    assert total > 170  # six such runs are more than a thousand


def test_a_running_and_a_waiting_request_tell_so_far() -> None:
    w = world(ScheduleLimits(max_num_seqs=1))
    first = make_request("a", [1], max_tokens=9)
    w.add(first, make_request("b", [1], max_tokens=9))
    w.step()
    w.step()
    w.clock.advance(0.25)
    for name in "ab":
        timeline = w.scheduler.timeline(make_request(name, [1]).request_id)
        assert timeline is not None
        assert not timeline.is_finished
        check_sum(timeline)
        assert timeline.e2e_s == pytest.approx(0.25 + 2 * STEP_S)
        if name == "b":
            assert parts(timeline) == approx({"queue:slots": 0.25 + 2 * STEP_S})
            assert "So far" in explain(timeline)
    w.run()
    assert parts(told(w, "b")) == approx(
        {"queue:slots": 0.25 + 9 * STEP_S, "prefill": STEP_S, "decode": 8 * STEP_S}
    )
    assert w.scheduler.timeline(first.request_id) is None


def test_a_sequence_remembers_a_bounded_number_of_others() -> None:
    cost = SimCost(step_s=STEP_S, prefill_token_s=0.01)
    w = world(ScheduleLimits(max_num_seqs=4, prefill_step_s=9.0), num_blocks=300, cost=cost)
    w.add(make_request("a", [1], max_tokens=150))
    w.step()
    w.step()
    for i in range(100):
        w.add(make_request(f"b{i}", range(i, i + 2 + i % 7), max_tokens=1))
        w.step()
    seq = w.scheduler._sequences[make_request("a", [1]).request_id]
    assert len(seq.times.others) <= 2 * MOST_OTHERS
    w.run()
    found = told(w, "a")
    assert found.seconds_of(PartName.OTHERS_PREFILL) == pytest.approx(
        sum((2 + i % 7) * 0.01 for i in range(100)), rel=1e-6
    )
    assert len(found.others) == 3


def test_the_share_of_prompts_in_a_step() -> None:
    assert prefill_share(1.0, 0, 5, 0, 0.2) == 0.0
    assert prefill_share(1.0, 5, 0, 0, 0.2) == 1.0
    assert prefill_share(1.0, 6, 2, 0, 0.25) == 0.75
    assert prefill_share(1.0, 6, 2, 2, 0.2) == pytest.approx(0.6)  # drafts take their part
    assert prefill_share(1.0, 6, 2, 0, 0.0) == 0.75  # not known: by tokens
    assert prefill_share(0.1, 6, 2, 0, 0.25) == 0.75  # what is known cannot be right here


# ---- sentences ----


def test_a_sentence_names_the_largest_cause_and_what_would_have_helped() -> None:
    w = world(ScheduleLimits(max_num_seqs=1))
    w.add(make_request("a", [1, 2], max_tokens=30))
    w.add(make_request("b", [3, 4], max_tokens=2))
    w.run()
    assert explain(told(w, "b")) == (
        "It took 320 ms, of which 300 ms (94 %) it waited for a slot; more slots (schedule.max_num_seqs) "
        "would have saved up to 300 ms."
    )
    assert explain(told(w, "a")) == (
        "It took 300 ms, of which 290 ms (97 %) drew its 30 tokens, 10 ms for each after the first; an "
        "answer half as long would have saved up to 145 ms."
    )


@pytest.mark.parametrize(("decode_s", "verify_s"), [(2.0, 1.0), (1.0, 2.0)])
def test_a_sentence_shares_steps_with_and_without_drafts_among_the_tokens_after_the_first(
    decode_s: float, verify_s: float
) -> None:
    spent = (Part(PartName.PREFILL, 0.5), Part(PartName.DECODE, decode_s), Part(PartName.VERIFY, verify_s))
    line = Timeline(
        request_id="a", arrival_s=1.0, until_s=4.5, is_finished=True, parts=spent, output_tokens=31
    )
    assert "drew its 31 tokens, 100 ms for each after the first" in explain(line)


REASONED = [
    Part(PartName.QUEUE, 2.0, reason.value) for reason in WaitReason if reason is not WaitReason.PREEMPTED
]


@pytest.mark.parametrize(
    "part",
    [
        *REASONED,
        *(Part(name, 2.0) for name in PartName),
        *(Part(PartName.PREEMPTED, 2.0, r) for r in ("waiting", "recomputing")),
    ],
    ids=lambda part: f"{part.name}-{part.reason}",
)
@pytest.mark.parametrize("is_known", [True, False])
def test_every_sentence_says_by_how_much_something_would_have_helped(part: Part, is_known: bool) -> None:
    """With and without what is known of the prefix and of drafts."""
    prefix = PrefixResult(outcome="hit", prompt_tokens=30, cached_tokens=10) if is_known else None
    line = Timeline(
        request_id="a",
        arrival_s=1.0,
        until_s=3.5,
        is_finished=True,
        parts=(part, Part(PartName.HOST, 0.5, "rest")),
        prefix=prefix,
        output_tokens=5,
        drafts=(8, 6) if is_known else (0, 0),
    )
    halved = part.name is PartName.DECODE or (part.name is PartName.VERIFY and not is_known)
    amount = 0.5 if part.name is PartName.VERIFY and is_known else 1.0 if halved else 2.0
    told = explain(line)
    text = f"{amount:.2f} s" if amount >= 1 else f"{1000 * amount:.3g} ms"
    assert told.startswith("It took 2.50 s, of which 2.00 s (80 %) ")
    assert told.endswith(f" would have saved up to {text}."), told
    if part.reason:
        assert "less load" not in told  # a remedy of its own


def test_a_single_token_has_no_rate() -> None:
    spent = (Part(PartName.DECODE, 1.0),)
    line = Timeline(
        request_id="a", arrival_s=1.0, until_s=2.0, is_finished=True, parts=spent, output_tokens=1
    )
    assert "drew its 1 tokens;" in explain(line)


def test_the_command_draws_parts_that_can_be_told_apart_without_colours(capsys) -> None:
    assert len({letter for _, letter in LOOKS.values()}) == len(LOOKS) == len(PartName)
    names = [("queue", "slots", 0.1), ("queue", "step", 0.1), ("prefill", "", 0.2), ("decode", "", 1.6)]
    parts = [{"name": name, "reason": reason, "seconds": seconds} for name, reason, seconds in names]
    show({"parts": parts, "sentence": "It took 2.00 s."})
    bar, *table, sentence = capsys.readouterr().out.splitlines()
    assert bar == "Q" * 5 + "q" * 5 + "P" * 10 + "D" * 80
    assert [line.split()[:4] for line in table] == [
        ["Q", "queue", "100", "ms"],
        ["q", "queue", "100", "ms"],
        ["P", "prefill", "200", "ms"],
        ["D", "decode", "1.60", "s"],
    ]
    assert sentence == "It took 2.00 s."


@pytest.mark.parametrize("name", list(LOOKS))
def test_the_commands_bar_has_each_parts_colour_on_a_terminal(capsys, monkeypatch, name: str) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show({"parts": [{"name": name, "reason": "", "seconds": 1.0}], "sentence": "It took 1.00 s."})
    bar, row, sentence = capsys.readouterr().out.splitlines()
    colour, letter = LOOKS[name]
    number = Color.parse(colour).number
    assert number is not None
    base = 30 + number if number < 8 else 82 + number
    assert bar == f"\x1b[30;{base + 10}m{letter * 100}\x1b[0m"
    assert f"\x1b[{base}m{letter} {name}\x1b[0m" in row
    assert sentence == "It took 1.00 s."
