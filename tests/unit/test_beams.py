"""Beam search on the simulated machine: equal to its definition, whatever happens around it."""

from dataclasses import replace
from random import Random

import pytest

from headrace.base.errors import CapacityError, RequestError
from headrace.base.request import FinishReason
from headrace.base.step import MoveKind
from headrace.base.tasks import BeamSearch
from headrace.base.terms import Tenant, Terms
from headrace.engine.sim import SimCost, fold, offers
from headrace.host.sched.limits import ScheduleLimits
from tests.kit.beams import by_rounds, exhaustive, same_but_ties
from tests.kit.host import World, make_request, random_request

VOCAB = 3


def searching(name, prompt, max_tokens, width, ends=(), **task):
    return make_request(
        name, prompt, max_tokens, end_ids=frozenset(ends), task=BeamSearch(width=width, **task)
    )


def scorer(request, vocab=VOCAB):
    def score(tokens):
        offer = offers(request, fold(request, tokens), 0, vocab)
        return list(zip(offer.top_ids, offer.top_logprobs, strict=True))

    return score


def world(**more) -> World:
    limits = ScheduleLimits(max_num_seqs=more.pop("slots", 8), max_num_batched_tokens=more.pop("budget", 32))
    return World(vocab=VOCAB, limits=limits, cost=SimCost(step_s=0.01, prefill_token_s=0.02), **more)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -1.0])
def test_a_width_that_cuts_nothing_off_finds_the_best_of_all_answers(penalty):
    """3 tokens, at most 3 of them: 27 beginnings are all there are."""
    request = searching("r", [1, 0, 2], 3, 27, ends={0}, length_penalty=penalty)
    made = world(slots=27, num_blocks=60)
    made.add(request)
    made.run()
    found = made.last["r"].beams
    assert len(found) == 15  # 1 + 2 + 4 answers that end, 8 that do not
    assert same_but_ties(exhaustive(request, scorer(request)), found)


def test_the_first_token_comes_after_the_whole_prompt():
    """Budget 4, so three chunks of the prompt: 12 tokens of 20 ms, and a step of 10 ms each."""
    request = searching("r", [1, 0, 2] * 4, 2, 2)
    made = world(budget=4)
    made.add(request)
    made.run()
    timing = made.last["r"].timing
    assert timing.first_token_s - timing.arrival_s >= 12 * 0.02 + 3 * 0.01


@pytest.mark.parametrize("seed", range(60))
def test_one_search_is_the_loop_of_its_definition(seed):
    rng = Random(seed)
    request = searching(
        "r",
        [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))],
        rng.randint(1, 9),
        rng.randint(1, 5),
        ends=rng.choice([(), {0}, {0, 1}]),
        length_penalty=rng.choice([0.0, 0.5, 1.0, 3.0, -1.0]),
        early_stopping=rng.random() < 0.3,
    )
    made = world(num_blocks=90, block_size=rng.choice([1, 2, 4]), budget=rng.choice([2, 32]))
    made.add(request)
    made.run()
    made.verify()
    assert made.last["r"].beams == by_rounds(request, scorer(request))
    assert made.last["r"].finish is made.last["r"].beams[0].finish


def test_forks_share_blocks_copy_on_write_and_compute_one_token_each():
    request = searching("r", range(3, 12), 8, 4)
    made = world(num_blocks=40, block_size=4)
    made.add(request)
    made.run()
    first, *rounds = made.plans
    assert sum(row.count for row in first.rows) == 9
    assert all(row.count == 1 for plan in rounds for row in plan.rows)
    assert {len(plan.rows) for plan in rounds[1:]} <= {3, 4}
    copies = [m for plan in rounds for m in plan.moves if m.kind is MoveKind.COPY]
    assert copies
    assert len(copies) <= 3 * len(rounds)


@pytest.mark.parametrize("background", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(150))
def test_any_schedule_gives_the_answers_of_the_definition(seed, background):
    """Two or three searches beside drawing requests in a pool that is too small for all of them.

    A share of all of them is of the background.
    """
    rng = Random(seed)
    depth, block = rng.choice([1, 1, 2]), rng.choice([1, 2, 4])
    made = world(
        num_blocks=rng.choice([24, 40]) // block * 2,
        block_size=block,
        slots=rng.choice([3, 4, 6]),
        budget=rng.choice([3, 6, 32]),
        policy=rng.choice(["continuous", "continuous", "static", "dynamic"]),
        num_drafts=rng.choice([0, 0, 2]),
        prefix_cache=rng.random() < 0.8,
        settings={"dynamic_size": 3, "dynamic_window_ms": 40.0},
    )
    stem = [rng.randrange(VOCAB) for _ in range(8)]
    todo = [random_request(rng, f"r{i}", VOCAB, made.ledger.capacity_tokens) for i in range(4)]
    for i in range(3):
        prompt = stem[: rng.randint(1, 8)]
        todo.append(searching(f"b{i}", prompt, rng.randint(1, 6), rng.randint(1, 3), ends={0}))
    bounds = {"max_running": rng.choice([None, 2, 3]), "kv_share": rng.choice([1.0, 0.7])}
    terms = Terms(tenant=Tenant(name="t", **bounds))
    todo = [r and replace(r, terms=terms) if rng.random() < 0.4 else r for r in todo]
    todo = [
        r and replace(r, terms=replace(r.terms, is_background=True)) if rng.random() < background else r
        for r in todo
    ]
    rng.shuffle(todo)
    while any(todo) or made.scheduler.has_work:
        if todo and rng.random() < 0.5 and (request := todo.pop()) is not None:
            try:
                made.add(request)
            except CapacityError:
                assert isinstance(request.task, BeamSearch) or request.terms.tenant is terms.tenant
        if rng.random() < 0.03 and made.requests:
            made.abort(rng.choice(sorted(made.requests)))
        if made.scheduler.has_work:
            made.step(depth)
        assert len(made.plans) < 3000, "no progress"
    made.verify()
    for name, request in made.requests.items():
        last = made.last[name]
        if isinstance(request.task, BeamSearch) and last.finish is not FinishReason.ABORT:
            assert last.beams == by_rounds(request, scorer(request)), name


def test_searches_that_hold_everything_give_way_to_the_best_ranked():
    """Each of them fits the pool, all of them do not: none may wait for the others for ever."""
    made = world(num_blocks=14, block_size=1, slots=6, budget=32)
    for i in range(3):
        made.add(searching(f"b{i}", [i], 5, 2))
    made.run()
    made.verify()
    assert made.scheduler.stats().preemptions > 0
    for name, request in made.requests.items():
        assert made.last[name].beams == by_rounds(request, scorer(request))


def test_what_can_never_run_is_refused_with_numbers():
    made = world(num_blocks=10, block_size=4, slots=4)
    with pytest.raises(CapacityError, match="width 5 needs as many slots, 4 may be had"):
        made.add(searching("r", [1], 2, 5))
    with pytest.raises(CapacityError, match=r"4 beams of 16 tokens need 16 KV blocks, 10 may be had"):
        made.add(searching("r", [1] * 8, 9, 4))
    for task in ({"width": 0}, {"width": 65}, {"width": 2, "length_penalty": float("nan")}):
        with pytest.raises(RequestError):
            BeamSearch(**task)
