"""With drafts or without: the same tokens and log-probabilities, bit by bit, whoever drafts and how deep."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import InvariantError
from headrace.base.grammar import Grammar
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.compute.spec.proposer import PROPOSERS
from headrace.host.grammar import compiler
from tests.kit.drafts import draft_with
from tests.kit.engine import END, GRAMMARS, VOCAB, Drive, Rig, rig
from tests.kit.scripted import scripted_checkpoint
from tests.kit.solo import check_drafts

METHODS = ("auto", *PROPOSERS.names())


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_drafts_equals_plain_solo_runs(method, seed):
    """SP-1, SA-7."""
    check_drafts(rig("native", 1), rig("native", 1), seed, method)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_any_schedule_with_drafts_and_two_threads_equals_plain_solo_runs(seed):
    check_drafts(rig("native", 2), rig("native", 1), seed, "auto")


@settings(max_examples=8)
@given(st.integers(0, 2**32))
def test_any_schedule_with_drafts_equals_plain_solo_runs_on_the_reference(seed):
    check_drafts(rig("reference"), rig("reference"), seed, "auto")


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_random_drafts_change_nothing(seed, wrong):
    """Drafts that are mostly wrong, whatever they are: from the end tokens to the last of the vocabulary."""

    def say(ids):
        rng = random.Random(hash((seed, *ids)))
        return [rng.choice([END, 11, 12, rng.randrange(VOCAB)]) for _ in range(rng.randint(0, 3 * wrong))]

    check_drafts(rig("native", 1), rig("native", 1), seed, "ngram", say=say)


def test_fixed_schedules_check_and_accept_drafts():
    """The suites above would pass without any draft."""
    checked = [check_drafts(rig("native", 1), rig("native", 1), seed, "suffix") for seed in range(25)]
    assert sum(checked) > 100


def oracle(solo_tokens, num_prompt):
    """Drafts that are right: what the request draws alone."""
    return lambda ids: solo_tokens[len(ids) - num_prompt :]


HARD = (
    {"temperature": 0.0},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.9, "repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": -0.5},
    {"temperature": 1.0, "bad_words_ids": ((7, 8), (9,)), "logit_bias": ((5, 4.0), (6, -100.0))},
    {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 2.0, "min_p": 0.05, "allowed_token_ids": tuple(range(3, VOCAB, 2))},
)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("sampling", HARD, ids="-".join)
def test_drafts_that_are_the_target_are_all_accepted(sampling, depth):
    """SP-3; the last row drafts no more than is left."""
    subject, num = rig("native", 1), 51
    request = Request(
        request_id="r",
        prompt_ids=tuple(range(3, 23)),
        sampling=SamplingParams(seed=4, max_tokens=num, **sampling),
    )
    want = subject.solo(request)
    assert len(want.tokens) == num
    core = subject.core(dtype="f32", speculate=f"ngram,depth={depth}")
    draft_with(core, oracle(want.tokens, 20))
    lives = Drive(core).run([request])
    assert lives["r"].answer == want.answer
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] == num - counts["steps"]
    assert counts["steps"] == 1 + -(-(num - 1) // (depth + 1))


def scripted_rig() -> Rig:
    """3 4 5 .. 40 END, one token after the other."""
    return Rig(scripted_checkpoint({i: i + 1 if i < 40 else END for i in range(3, 41)}), "native", 1, 256)


@pytest.mark.parametrize("depth", [1, 4, 8])
def test_an_end_within_an_accepted_run_ends_there(depth):
    subject = scripted_rig()
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=60)
    request = Request(request_id="r", prompt_ids=(3, 4), sampling=sampling, end_ids=frozenset({17}))
    core = subject.core(speculate=f"ngram,depth={depth}")
    draft_with(core, lambda ids: range(ids[-1] + 1, 41))
    life = Drive(core).run([request])["r"]
    assert life.tokens == list(range(5, 18))
    assert life.finish is FinishReason.STOP


def test_min_tokens_hold_back_an_end_that_is_drafted():
    """SA-7: the masks of each place are those it would have without drafts."""
    subject = rig("native", 1)
    prompt = tuple(range(3, 13))
    plain = SamplingParams(temperature=0.0, seed=0, max_tokens=12)
    first = subject.solo(Request(request_id="a", prompt_ids=prompt, sampling=plain)).tokens
    ends = frozenset({first[2]})
    for least in (0, 10):
        request = Request(
            request_id="r", prompt_ids=prompt, sampling=replace(plain, min_tokens=least), end_ids=ends
        )
        want = subject.solo(request)
        core = subject.core(speculate="ngram,depth=4")
        draft_with(core, lambda ids: first[len(ids) - len(prompt) :])
        life = Drive(core).run([request])["r"]
        assert life.answer == want.answer
        assert (len(life.tokens) > 9) == (least == 10)


@pytest.mark.parametrize("least", [7, 8, 9, 10, 12])
@pytest.mark.parametrize("depth", [2, 5, 8])
def test_an_end_counts_again_within_a_run_of_drafts_that_reaches_min_tokens(least, depth):
    """SA-7: drafts before a place count as tokens there."""
    subject = scripted_rig()
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=20, min_tokens=least)
    request = Request(request_id="r", prompt_ids=(3, 4), sampling=sampling, end_ids=frozenset({14}))
    want = subject.solo(request)
    assert (len(want.tokens) == 10) == (least <= 9)
    core = subject.core(speculate=f"ngram,depth={depth}", dtype="f32")
    draft_with(core, oracle(want.tokens, 2))
    assert Drive(core).run([request])["r"].answer == want.answer


def test_a_sequence_that_comes_back_drafts_from_all_its_tokens():
    """A preempted sequence begins again in its slot; what the proposer knew there is of another."""
    subject, rng = rig("native", 1), random.Random(2)
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_ids=tuple([rng.randrange(3, VOCAB) for _ in range(4)] * 3),
            sampling=SamplingParams(temperature=0.0, seed=i, max_tokens=30, repetition_penalty=0.6),
        )
        for i in range(4)
    ]
    core = subject.core(block_size=4, num_blocks=24, slots=4, speculate="suffix,depth=5")
    lives = Drive(core).run(requests)
    assert sum(life.preempted for life in lives.values()) > 0
    for request in requests:
        assert lives[request.request_id].answer == subject.solo(request).answer
    assert core.stats().counters["drafts_accepted"] > 40


def test_all_tokens_of_a_sequence_are_copied_once():
    """Also where its drafts go wrong, so that only some of its rows ask for any."""
    subject = rig("native", 1)
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=150)
    request = Request(request_id="r", prompt_ids=tuple(range(3, 23)), sampling=sampling)
    core = subject.core(speculate="ngram")
    draft_with(core, lambda ids: [(ids[-1] + 1) % VOCAB])
    drafting, plans, copied = core.runner._parts.drafting, [], []
    run, know = core.runner.run, drafting.know
    core.runner.run = lambda plan: (plans.append(plan), run(plan))[1]
    drafting.know = lambda slot, ids: (copied.append(len(ids)), know(slot, ids))[1]
    assert Drive(core).run([request])["r"].answer == subject.solo(request).answer
    asks = [bool(row.max_drafts) for plan in plans for row in plan.rows]
    assert asks.count(False) > 50
    assert asks.count(True) > 25
    assert copied == [21]


def test_planned_drafts_reach_the_rows_and_no_further_than_the_limit():
    """The token budget counts drafts; the answer's limit and the step's room bound them."""
    subject = scripted_rig()
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=20, ignore_eos=True)
    requests = [Request(request_id=f"r{i}", prompt_ids=(3, 4), sampling=sampling) for i in range(4)]
    core = subject.core(budget=12, slots=4, speculate="ngram,depth=16")
    draft_with(core, lambda ids: range(ids[-1] + 1, 41))
    plans, run = [], core.runner.run
    core.runner.run = lambda plan: (plans.append(plan), run(plan))[1]
    lives = Drive(core).run(requests)
    assert all(life.tokens == list(range(5, 25)) for life in lives.values())
    assert all(plan.num_tokens <= 12 for plan in plans)
    shares = {tuple(row.num_drafts for row in plan.rows) for plan in plans if len(plan.rows) == 4}
    assert (2, 2, 2, 2) in shares, shares
    assert all(row.start + row.count <= 2 + 20 - 1 for plan in plans for row in plan.rows)
    # Drafts are blocks too, and a check of the pool after every step finds none left behind.


def test_counts_of_a_known_trace():
    """SP-11: the acceptance length counts the token that is drawn after the drafts."""
    subject = scripted_rig()
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=13)
    core = subject.core(speculate="ngram,depth=4")
    # Of four drafts the first two are right, at every row: rows give 1, then 3, 3, 3, 3 tokens.
    draft_with(core, lambda ids: [ids[-1] + 1, ids[-1] + 2, 3, 3])
    drive = Drive(core)
    drive.run([Request(request_id="r", prompt_ids=(3, 4), sampling=sampling)])
    counts = core.stats().counters
    assert counts["steps"] == 5
    assert counts["draft_rows"] == 4
    assert counts["drafts_checked"] == 4 + 4 + 4 + 2
    assert counts["drafts_accepted"] == 8
    assert (counts["drafts_accepted_0"], counts["drafts_accepted_1"]) == (4, 4)
    assert "drafts_accepted_2" not in counts
    assert 1 + counts["drafts_accepted"] / counts["draft_rows"] == 3.0  # the acceptance length


def test_a_result_with_more_tokens_than_its_row_could_give_is_refused():
    subject = scripted_rig()
    core = subject.core(speculate="ngram,depth=2")
    draft_with(core, lambda ids: [ids[-1] + 1, ids[-1] + 2])
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=9)
    core.add((Request(request_id="r", prompt_ids=(3, 4), sampling=sampling),))
    core.step()
    plan = core.scheduler.plan()
    assert plan is not None
    result = core.run(plan)
    (row,) = result.rows
    assert len(row.tokens) == 3
    with pytest.raises(InvariantError, match="gave 4 tokens"):
        core.scheduler.commit(replace(result, rows=(row._replace(tokens=(*row.tokens, 9)),)))


@pytest.mark.parametrize("grammar", GRAMMARS, ids=range(len(GRAMMARS)))
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_under_a_grammar_is_not_drafted(grammar, temperature):
    """SA-7. One beside it is."""
    subject = rig("native", 1)
    sampling = SamplingParams(temperature=temperature, seed=6, max_tokens=24, structured=grammar, logprobs=1)
    request = Request(request_id="r", prompt_ids=(3, 4, 5), sampling=sampling, end_ids=frozenset({END}))
    free = replace(request, request_id="f", sampling=replace(sampling, structured=None))
    want = {r.request_id: subject.solo(r).answer for r in (request, free)}
    core = subject.core(dtype="f32", speculate="ngram,depth=5")
    draft_with(core, lambda ids: [(ids[-1] + 1) % VOCAB] * 3)
    plans, run = [], core.runner.run
    core.runner.run = lambda plan: (plans.append(plan), run(plan))[1]
    lives = Drive(core).run([request, free])
    assert {name: life.answer for name, life in lives.items()} == want
    by_slot = {begin.slot: begin.request.request_id for plan in plans for begin in plan.begins}
    assert {by_slot[row.slot] for plan in plans for row in plan.rows if row.num_drafts} == {"f"}


def test_drafts_do_not_use_up_the_limits_of_a_grammar(monkeypatch):
    """Copies of a matcher share the states of its lexer; drafts along them would end the answer early."""
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 1500)
    subject, rng = rig("native", 1), random.Random(1)
    grammar = Grammar.regex("[a-z]*[a-m][a-z]{14}Q")
    sampling = SamplingParams(temperature=1.5, seed=6, max_tokens=40, structured=grammar)
    request = Request(request_id="r", prompt_ids=(3, 4, 5), sampling=sampling, end_ids=frozenset({END}))
    lives = []
    for method in ("off", "ngram,depth=8"):
        core = subject.core(dtype="f32", speculate=method)
        if method != "off":
            draft_with(core, lambda _: [rng.randrange(3, 29) for _ in range(8)])
        lives.append(Drive(core).run([request])["r"])
    plain, drafted = lives
    assert (len(plain.tokens), plain.error) == (40, None)
    assert drafted.answer == plain.answer


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_any_drafts_under_grammars_change_nothing(seed):
    """Drafts that begin well and go wrong, or that the grammar forbids, or that end the answer early."""
    subject, rng = rig("native", 1), random.Random(seed)
    requests = []
    for i in range(3):
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 1.0]), seed=i, max_tokens=16, structured=rng.choice(GRAMMARS)
        )
        ends = frozenset({END} if rng.random() < 0.8 else ())
        requests.append(Request(request_id=f"r{i}", prompt_ids=(3 + i, 4), sampling=sampling, end_ids=ends))
    want = {r.request_id: subject.solo(r) for r in requests}
    by_first = {r.prompt_ids[0]: want[r.request_id].tokens for r in requests}

    def say(ids):
        right = list(by_first[ids[0]][len(ids) - 2 :])[: rng.randint(0, 4)]
        return [*right, rng.choice([END, rng.randrange(VOCAB)]), *right]

    core = subject.core(dtype="f32", speculate=f"ngram,depth={rng.randint(1, 8)}", slots=rng.choice([1, 3]))
    draft_with(core, say)
    lives = Drive(core).run(requests)
    assert {name: life.answer for name, life in lives.items()} == {n: w.answer for n, w in want.items()}
