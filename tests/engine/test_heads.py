"""Medusa and EAGLE heads: the answers are those without, drafts are right where heads know the target."""

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.compute.runner import runner as runner_page
from headrace.compute.runner.seen import seen_in_pass
from headrace.compute.spec.states import Seen
from headrace.host.sched.drafts.depth import Depth
from tests.kit import heads as kit
from tests.kit.engine import VOCAB, Drive, Rig, rig
from tests.kit.heads import KINDS, WIDTH, counting, scripted_eagle, scripted_medusa
from tests.kit.solo import check_drafts


@pytest.fixture(scope="module")
def random_heads(tmp_path_factory):
    """For the tiny llama."""
    return kit.random_heads(tmp_path_factory.mktemp("random"), 32, VOCAB)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A target that counts, and settings with heads that know it."""
    folder = tmp_path_factory.mktemp("known")
    path, table = counting()
    subject = Rig(path, "native", 1, 256)
    some = sorted({*range(3, 201), 2})
    return subject, {
        "medusa": f"medusa={scripted_medusa(folder / 'm', table, 8)}",
        "medusa, the paper's layout": f"medusa={scripted_medusa(folder / 'p', table, 8, layout='paper')}",
        "medusa, some tokens": f"medusa={scripted_medusa(folder / 's', table, 8, tokens=some)}",
        "eagle, by features": f"eagle={scripted_eagle(folder / 'f', table)}",
        "eagle, by tokens": f"eagle={scripted_eagle(folder / 't', table, feeds='token')}",
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_heads_equals_plain_solo_runs(random_heads, kind, seed):
    """SP-1."""
    check_drafts(rig("native", 1), rig("native", 1), seed, random_heads[kind])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_heads_and_two_threads_equals_plain_solo_runs(random_heads, kind, seed):
    check_drafts(rig("native", 2), rig("native", 1), seed, random_heads[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_schedules_check_drafts_of_heads(random_heads, kind):
    """The suites above would pass without any draft."""
    checked = [
        check_drafts(rig("native", 1), rig("native", 1), seed, random_heads[kind]) for seed in range(8)
    ]
    assert sum(checked) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_heads_on_the_reference_change_nothing(random_heads, kind):
    assert (
        sum(check_drafts(rig("reference"), rig("reference"), seed, random_heads[kind]) for seed in (1, 2)) > 0
    )


ALL = (
    "medusa",
    "medusa, the paper's layout",
    "medusa, some tokens",
    "eagle, by features",
    "eagle, by tokens",
)


def ask(name: str, start: int = 3, num_prompt: int = 20, **sampling) -> Request:
    sampling = SamplingParams(**({"temperature": 0.0, "seed": 4, "max_tokens": 51} | sampling))
    prompt = tuple(range(start, start + num_prompt))
    return Request(request_id=name, prompt_ids=prompt, sampling=sampling)


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("kind", ALL)
def test_heads_that_know_the_target_are_all_accepted(known, kind, depth):
    """SP-3, SP-8: counted exactly."""
    subject, heads = known
    core = subject.core(num_blocks=64, dtype="f32", speculate=f"{heads[kind]},depth={depth}")
    life = Drive(core).run([ask("r")])["r"]
    assert life.tokens == list(range(23, 74))
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] == 51 - counts["steps"]
    assert counts["steps"] == 1 + -(-50 // (depth + 1))


SAMPLED = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 5, "repetition_penalty": 1.05},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.0, "bad_words_ids": ((40,),)},
)


@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
@pytest.mark.parametrize("kind", ALL)
def test_heads_draft_as_the_request_draws(known, kind, sampling):
    """Seed, penalties and bans are those of the place: a banned token is not drafted either."""
    subject, heads = known
    request = ask("r", num_prompt=9, **sampling)
    core = subject.core(num_blocks=64, dtype="f32", speculate=f"{heads[kind]},depth=4")
    life = Drive(core).run([request])["r"]
    assert life.answer == subject.solo(request).answer
    counts = core.stats().counters
    least = 0.2 if "bad_words_ids" in sampling else 1.0  # the target goes on with a token that some lack
    assert counts["drafts_accepted"] >= least * counts["drafts_checked"]


@pytest.mark.parametrize("kind", ALL)
def test_preempted_and_forked_sequences_and_cached_prefixes_go_on_being_drafted_right(known, kind):
    """What a drafter knows of a sequence is found again, or made again, after everything that moves it."""
    subject, heads = known
    requests = [ask(f"r{i}.0", 3 + 8 * i, 18, max_tokens=40, seed=i) for i in range(5)]
    requests += [replace(requests[0], request_id=f"r0.{k}", leader="r0.0") for k in (1, 2)]
    core = subject.core(num_blocks=40, block_size=4, slots=4, budget=24, speculate=f"{heads[kind]},depth=4")
    lives = Drive(core).run(requests, arrivals={"r4.0": 12})
    assert sum(life.preempted for life in lives.values()) > 0
    again = [replace(ask("again", 3, 30, max_tokens=30)), ask("more", 3, 26, max_tokens=30)]
    lives |= Drive(core).run(again)
    assert lives["more"].cached > 0
    for request in (*requests, *again):
        start = request.prompt_ids[-1] + 1
        assert lives[request.request_id].tokens == list(range(start, start + request.sampling.max_tokens))
    counts = core.stats().counters
    assert counts["drafts_checked"] > 150
    assert counts["drafts_accepted"] == counts["drafts_checked"]


def drafts_of(core, requests, **when) -> dict[tuple[int, ...], list[int]]:
    """What the drafter says after each sequence of tokens that it is asked about."""
    drafter, state, found = core.runner._parts.drafting._watchers[0], core.runner._state, {}
    propose = drafter.propose

    def noted(asks):
        keys = [tuple(state.tokens[ask.slot, : state.num_tokens[ask.slot]].tolist()) for ask in asks]
        made = propose(asks)
        for key, ask, drafts in zip(keys, asks, made, strict=True):
            if ask.most == 4 and len(drafts) == 4:
                assert found.setdefault(key, drafts) == drafts
        return made

    drafter.propose = noted
    Drive(core).run(requests, **when)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_do_not_depend_on_how_a_sequence_was_computed(random_heads, kind):
    """Chunks, preemption, forks, cached prompts: the drafter's keys and values are those of the sequence."""
    subject, rng = rig("native", 1), random.Random(3)
    prompts = [tuple(rng.randrange(3, VOCAB) for _ in range(length)) for length in (21, 34, 50)]
    requests = [
        Request(
            request_id=f"r{i}.{k}",
            prompt_ids=prompt,
            sampling=SamplingParams(temperature=0.0, seed=1, max_tokens=24, repetition_penalty=1.1),
            leader=f"r{i}.0" if k else None,
        )
        for i, prompt in enumerate(prompts)
        for k in range(3)
    ]
    setting, alone = random_heads[kind] + ",depth=4", dict[tuple[int, ...], list[int]]()
    for request in requests[::3]:
        alone |= drafts_of(
            subject.core(slots=1, prefix_cache=False, dtype="f32", speculate=setting), [request]
        )
    core = subject.core(num_blocks=56, block_size=4, slots=6, budget=19, dtype="f32", speculate=setting)
    later = [replace(r, request_id="again" + r.request_id, leader=None) for r in requests if r.leader is None]
    found = drafts_of(core, [*requests, *later], arrivals={r.request_id: 60 for r in later})
    common = found.keys() & alone.keys()
    assert len(common) > 40
    assert {key: found[key] for key in common} == {key: alone[key] for key in common}


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3},
        {"temperature": 1.5, "logit_bias": ((50, 2.0), (60, -9.0)), "bad_words_ids": ((70,),)},
    ],
    ids=str,
)
def test_sampled_drafts_agree_because_their_noise_is_the_same(tmp_path, sampling):
    """A target that hardly prefers any token: without its noise a draft would be right one time in 300."""
    path, table = counting()
    soft = tmp_path / "soft"
    shutil.copytree(path, soft)
    tensors = load_file(soft / "model.safetensors")
    tensors["lm_head.weight"] *= 0.02
    save_file(tensors, soft / "model.safetensors")
    heads = scripted_eagle(tmp_path / "heads", table, feeds="token")
    core = Rig(soft, "native", 1, 256).core(num_blocks=64, dtype="f32", speculate=f"eagle={heads},depth=4")
    life = Drive(core).run([ask("r", max_tokens=200, **sampling)])["r"]
    assert len(set(life.tokens)) > 60
    counts = core.stats().counters
    assert counts["drafts_accepted"] > 0.97 * counts["drafts_checked"] > 100


def test_no_more_drafts_are_promised_than_there_are_heads(known, tmp_path):
    """Else rows would get blocks and tokens of the budget for drafts that nobody makes."""
    subject, _ = known
    two = scripted_medusa(tmp_path / "two", counting()[1], 2)
    core = subject.core(num_blocks=64, dtype="f32", speculate=f"medusa={two},depth=8")
    plans, run = [], core.runner.run
    core.runner.run = lambda plan: (plans.append(plan), run(plan))[1]
    assert Drive(core).run([ask("r")])["r"].tokens == list(range(23, 74))
    assert max(row.num_drafts for plan in plans for row in plan.rows) == 2
    assert core.stats().counters["drafts_accepted"] == core.stats().counters["drafts_checked"] > 30


def places(counts) -> list[int]:
    return [int(counts.get(f"drafts_accepted_{i}", 0)) for i in range(4)]


def medusa_with_gaps(folder, table) -> str:
    """Heads that are wrong where the token, as each counts, divides by 5, 4, 3, 2."""
    made = scripted_medusa(folder, table, 4, wrong=lambda depth, token: token % (5 - depth) == 0)
    return f"medusa={made},depth=4"


def right_places(steps: list[tuple[int, int]]) -> list[int]:
    """Accepted drafts by place, from (last computed token, drafts checked) of each row."""
    found = [0] * 4
    for token, num in steps:
        for depth in range(num):
            if token % (5 - depth) == 0:
                break
            found[depth] += 1
    return found


def test_acceptance_by_place_is_what_the_heads_say(known, tmp_path):
    """SP-8: pinned, and equal to what follows from the heads by hand."""
    subject, _ = known
    core = subject.core(num_blocks=64, dtype="f32", speculate=medusa_with_gaps(tmp_path / "g", counting()[1]))
    life = Drive(core).run([ask("r", max_tokens=100)])["r"]
    assert life.tokens == list(range(23, 123))
    assert places(core.stats().counters) == PINNED
    token, left, steps = 22, 99, []
    while left > 0:
        num = min(4, left - 1)
        steps.append((token, num))
        right = next((d for d in range(num) if token % (5 - d) == 0), num)
        token, left = token + right + 1, left - right - 1
    assert right_places(steps) == PINNED


PINNED = [27, 23, 11, 3]


def one_row_off(pieces, outcomes, context, kept):
    """`seen_in_pass` with each state where the one after it belongs."""
    seen = seen_in_pass(pieces, outcomes, context, kept)
    return Seen(seen.rows, seen.token_ids, [np.roll(states, 1, axis=0) for states in seen.kept])


@pytest.mark.parametrize("kind", ["medusa", "eagle, by features"])
def test_states_that_are_one_row_off_are_noticed(known, kind, monkeypatch):
    """SP-8: what the tests above would miss if acceptance did not count."""
    monkeypatch.setattr(runner_page, "seen_in_pass", one_row_off)
    subject, heads = known
    core = subject.core(num_blocks=64, dtype="f32", speculate=f"{heads[kind]},depth=4")
    life = Drive(core).run([ask("r")])["r"]
    assert life.tokens == list(range(23, 74))
    counts = core.stats().counters
    assert counts["drafts_accepted"] < 0.2 * counts["drafts_checked"]


def test_eagle_takes_long_prompts_and_long_plain_stretches_in(known, monkeypatch):
    """Pieces of a prompt, and tokens that were decoded while nothing was drafted, are taken in by and by."""
    choices = iter([0] * 30 + [4] * 1000)
    monkeypatch.setattr(Depth, "_best", lambda _, found, *sizes: found[: min(next(choices), sizes[-1])])
    subject, heads = known
    core = subject.core(num_blocks=64, budget=40, dtype="f32", speculate=f"{heads['eagle, by features']}")
    lives = Drive(core).run([ask("r", 3, 120, max_tokens=60), ask("s", 3, 7, max_tokens=150)])
    assert lives["r"].tokens == list(range(123, 183))
    assert lives["s"].tokens == list(range(10, 160))
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] > 20
    drafter = core.runner._parts.drafting._watchers[0]
    assert all(waiting.count <= 17 for waiting in drafter._waiting.values())


def test_nothing_is_kept_without_heads():
    """States cost nothing where nobody asks for them."""
    for setting in ("off", "ngram"):
        runner = rig("native", 1).core(speculate=setting).runner
        assert list(runner._parts.program.kept) == []


def test_an_end_within_accepted_drafts_of_heads_ends_there(known):
    subject, heads = known
    for kind in ALL:
        core = subject.core(num_blocks=64, speculate=f"{heads[kind]},depth=8")
        request = replace(ask("r"), end_ids=frozenset({40}))
        life = Drive(core).run([request])["r"]
        assert life.tokens == list(range(23, 41))
        assert life.finish is FinishReason.STOP


def test_the_states_of_the_scripted_target_are_its_tokens(known):
    """What the heads above are built on."""
    subject, heads = known
    core = subject.core(num_blocks=64, dtype="f32", speculate=f"{heads['medusa']},depth=2")
    Drive(core).run([ask("r", max_tokens=3)])
    states = core.runner._parts.drafting._watchers[0]._states._states
    assert int(np.argmax(states[0])) in range(22, 26)
    assert np.isclose(states.max(), WIDTH**0.5, rtol=1e-2)
