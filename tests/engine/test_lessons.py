"""Field lessons as tests of the whole engine: hits, forks, chunks, preemption, aborts, neighbours."""

import random
from dataclasses import replace

import pytest

from headrace.base.errors import CapacityError, ContextLengthError
from headrace.base.request import FinishReason, Request, SamplingParams
from tests.kit.engine import VOCAB, Drive, Rig, rig, tiny_llama


def ids(count: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, VOCAB) for _ in range(count))


def ask(name: str, prompt, **params) -> Request:
    leader = params.pop("leader", None)
    sampling = SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": 8, "logprobs": 2, **params})
    return Request(request_id=name, prompt_ids=tuple(prompt), sampling=sampling, leader=leader)


def same(lives, requests) -> bool:
    return all(lives[r.request_id].answer == rig().solo(r).answer for r in requests)


@pytest.mark.parametrize("neighbours", [1, 3, 7])
@pytest.mark.parametrize("budget", [16, 512])
def test_sa1_neighbours_do_not_change_an_answer(neighbours, budget):
    mine = ask("mine", ids(21), max_tokens=16)
    others = [ask(f"o{i}", ids(5 + 13 * i, i + 1), temperature=1.0, seed=i) for i in range(neighbours)]
    arrivals = {f"o{i}": 2 + i for i in range(neighbours)}
    lives = Drive(rig().core(slots=8, budget=budget)).run([mine, *others], arrivals=arrivals)
    assert same(lives, [mine, *others])


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_pc1_a_prefix_hit_gives_the_answer_of_a_miss(length):
    core = rig().core(block_size=16)
    first = ask("first", ids(length))
    again = ask("again", ids(length))
    cousins = [ask(f"c{n}", (*ids(length)[:n], *ids(40 - n, 5))) for n in (1, 16, 17, 32) if n <= length]
    for request in (first, again, *cousins):
        drive = Drive(core)
        lives = drive.run([request])
        assert same(lives, [request])
        if request is again:
            assert lives["again"].cached == (length - 1) // 16 * 16


@pytest.mark.parametrize("length", [15, 16, 17])
def test_kv6_siblings_equal_their_solo_runs(length):
    leader = ask("a", ids(length), temperature=1.5, max_tokens=24, seed=10)
    others = [
        ask(f"a.{i}", ids(length), temperature=1.5, max_tokens=24, seed=10 + i, leader="a") for i in (1, 2, 3)
    ]
    lives = Drive(rig().core(block_size=16)).run([leader, *others])
    assert same(lives, [leader, *others])
    assert len({tuple(life.tokens) for life in lives.values()}) == 4


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 48, 49])
def test_sc1_any_chunk_size_gives_the_whole_prompts_answer(chunk):
    requests = [ask("a", ids(49, 1)), ask("b", ids(30, 2)), ask("c", ids(3, 3), max_tokens=20)]
    lives = Drive(rig().core(budget=chunk, slots=3)).run(requests, arrivals={"a": 4, "b": 5})
    assert same(lives, requests)


def test_sc2_a_row_that_waits_gives_nothing():
    """14 short and 2 long prompts, chunk 8: every answer as alone, and every piece of news has tokens."""
    requests = [ask(f"s{i}", ids(3 + i % 3, i), max_tokens=6) for i in range(14)]
    requests += [ask(f"l{i}", ids(90, 50 + i), max_tokens=6) for i in range(2)]
    core = rig().core(slots=16, budget=8)
    drive = Drive(core)
    sizes = []
    take = drive.take
    drive.take = lambda news: (sizes.extend(len(d.new_ids) for d in news.deltas), take(news))
    lives = drive.run(requests)
    assert same(lives, requests)
    assert set(sizes) == {1}
    assert len(sizes) == 16 * 6


def test_sc4_two_requests_that_outgrow_the_pool_both_finish():
    """Recipe: 10 blocks of 16; together they need 12."""
    requests = [ask("a", ids(60, 1), max_tokens=36), ask("b", ids(60, 2), max_tokens=36)]
    lives = Drive(rig().core(num_blocks=10, block_size=16)).run(requests)
    assert same(lives, requests)
    assert sum(life.preempted for life in lives.values()) > 0


def test_sc4_twenty_requests_on_ten_blocks_all_finish():
    requests = [ask(f"r{i}", ids(20 + i, i), max_tokens=30, temperature=0.8) for i in range(20)]
    lives = Drive(rig().core(num_blocks=10, block_size=16, slots=8)).run(requests)
    assert same(lives, requests)
    assert max(life.preempted for life in lives.values()) <= 20


def test_sa4_penalties_survive_preemption_and_neighbours():
    options = {"max_tokens": 36, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.5}
    requests = [
        ask("a", ids(60, 1), **options),
        ask("b", ids(60, 2), **options),
        ask("c", ids(7, 3), max_tokens=40),
    ]
    lives = Drive(rig().core(num_blocks=10, block_size=16)).run(requests)
    assert sum(life.preempted for life in lives.values()) > 0
    assert same(lives, requests)


@pytest.mark.parametrize("k", [0, 1, 5])
def test_sa5_logprobs_do_not_depend_on_temperature_or_number(k):
    prompt = ids(20)
    base = rig().solo(ask("a", prompt, logprobs=5, temperature=0.0, max_tokens=1)).logprobs[0]
    for temperature in (0.2, 1.5):
        requested = ask("a", prompt, logprobs=k, temperature=temperature, top_k=3, max_tokens=1)
        entry = rig().solo(requested).logprobs[0]
        assert entry.top_ids == base.top_ids[:k]
        assert entry.top_logprobs == base.top_logprobs[:k]
        known = dict(zip(base.top_ids, base.top_logprobs, strict=True))
        assert entry.logprob == known[entry.token_id]


@pytest.mark.parametrize("budget", [1, 3, 16, 512])
def test_a_failing_answer_has_the_logprobs_of_its_prompt_however_it_was_cut(budget):
    """One token is allowed and banned: the prompt is scored, then no token can be drawn."""
    request = ask("a", ids(40), prompt_logprobs=2, allowed_token_ids=(9,), bad_words_ids=((9,),))
    life = Drive(rig().core(budget=budget)).run([request])["a"]
    assert life.finish is FinishReason.ERROR
    assert len(life.prompt_logprobs) == 39
    assert life.answer == rig().solo(request).answer


def test_prompt_logprobs_equal_the_logprobs_of_generating():
    prompt = ids(12)
    life = rig().solo(ask("a", prompt, max_tokens=10, logprobs=3))
    whole = (*prompt, *life.tokens)
    scored = rig().solo(ask("b", whole, max_tokens=1, prompt_logprobs=3))
    assert scored.prompt_logprobs[len(prompt) - 1 :] == life.logprobs
    cut = Drive(rig().core(budget=5, slots=2)).run([ask("b", whole, max_tokens=1, prompt_logprobs=3)])
    assert cut["b"].prompt_logprobs == scored.prompt_logprobs


@pytest.mark.parametrize("state", ["queued", "prefill", "decode", "preempted"])
def test_kv2_an_abort_in_any_state_frees_everything(state):
    shape = {"num_blocks": 10, "block_size": 16, "slots": 2, "budget": 8}
    for round_ in range(20):
        core = rig().core(**shape)
        victim = ask("v", ids(60, 2), max_tokens=36)
        first = ask("f", ids(60, 1), max_tokens=36)
        third = ask("t", ids(5, 3), max_tokens=2)
        drive = Drive(core)
        requests = [first, victim, third]
        at = {"queued": 0, "prefill": 10, "decode": 20 + round_, "preempted": 24 + round_}[state]
        name = "t" if state == "queued" else "v"
        lives = drive.run(requests, aborts={name: at})
        assert lives[name].finish is FinishReason.ABORT
        kept = [r for r in requests if r.request_id != name]
        assert same(lives, kept)
        if round_ >= 3 and state in {"queued", "prefill"}:
            break


def test_kv4_random_cancels_never_disturb_the_others():
    rng = random.Random(4)
    requests, aborts = [], {}
    for i in range(60):
        for k in range(3):
            name = f"r{i}" + (f".{k}" if k else "")
            leader = f"r{i}" if k else None
            options = {
                "temperature": 1.0,
                "seed": 100 * i + k,
                "logprobs": 3,
                "max_tokens": rng.randint(1, 9),
            }
            requests.append(ask(name, ids(4 + i % 30, i % 7), leader=leader, **options))
            if rng.random() < 0.4:
                aborts[name] = rng.randint(0, 90)
    arrivals = {r.request_id: i // 3 for i, r in enumerate(requests)}
    lives = Drive(rig().core(num_blocks=20, block_size=4)).run(requests, arrivals=arrivals, aborts=aborts)
    assert all(life.finish is not None for life in lives.values())
    survivors = [r for r in requests if lives[r.request_id].finish is not FinishReason.ABORT]
    assert len(survivors) > 60
    assert same(lives, survivors)


def test_sc7_the_policies_differ_in_cost_only():
    requests = [ask(f"r{i}", ids(3 + 5 * (i % 4), i), max_tokens=2 + 6 * (i % 3)) for i in range(20)]
    waste = {}
    for policy in ("continuous", "static", "dynamic"):
        core = rig().core(policy=policy, slots=4)
        lives = Drive(core).run(requests)
        assert same(lives, requests)
        waste[policy] = core.stats().counters["wasted_slot_steps"]
    assert waste["static"] > waste["continuous"]


def test_sc10_and_kv1_lengths_at_the_limits():
    core = rig().core(num_blocks=10, block_size=16)
    capacity = 160
    fits = ask("fits", ids(capacity - 1), max_tokens=1)
    assert Drive(core).run([fits])["fits"].finish is FinishReason.LENGTH
    with pytest.raises((CapacityError, ContextLengthError), match=r"\d+"):
        core.add((ask("long", ids(capacity), max_tokens=8),))
    with pytest.raises((CapacityError, ContextLengthError), match=r"\d+"):
        core.add((ask("outgrows", ids(150), max_tokens=50),))
    lives = Drive(core).run([ask("short", ids(5))])
    assert lives["short"].finish is FinishReason.LENGTH


def test_kv7_unused_memory_may_hold_anything():
    core = rig().core(num_blocks=20)
    pool = core.runner._parts.pool
    for block in range(20):
        pool.fill(block, float("nan"))
    requests = [ask(f"r{i}", ids(10 + 7 * i, i)) for i in range(5)]
    assert same(Drive(core).run(requests), requests)


def test_sa9_broken_weights_end_requests_with_an_error():
    broken = Rig(tiny_llama(), "native")
    core = broken.core()
    program = core.runner._parts.program

    class Poisoned:
        maxima = None

        def run(self, ctx):
            logits = program.run(ctx)
            bad = [s for s, t in enumerate(ctx.logit_rows) if ctx.tables[ctx.row_of[t], 0] == 0]
            logits[bad] = float("nan")
            return logits

    core.runner._parts = replace(core.runner._parts, program=Poisoned())
    requests = [ask(f"r{i}", ids(10 + i, i)) for i in range(4)]
    lives = Drive(core).run(requests)
    failed = [r for r in requests if lives[r.request_id].finish is FinishReason.ERROR]
    assert len(failed) == 1
    assert "NaN" in lives[failed[0].request_id].error
    assert lives[failed[0].request_id].tokens == []
    assert same(lives, [r for r in requests if r not in failed])
    assert core.stats().counters["numeric_errors"] == 1
