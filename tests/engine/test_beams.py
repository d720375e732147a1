"""Beam search on real kernels: == a search whose every beginning is computed from scratch, alone."""

import random
from dataclasses import replace

import pytest

from headrace.base.errors import RequestError
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.tasks import BeamSearch
from headrace.engine.llm import LLM
from tests.kit.backends import BACKENDS
from tests.kit.beams import by_rounds
from tests.kit.engine import END, VOCAB, Drive, random_requests, rig, tiny_llama

PLAIN = SamplingParams(temperature=0.0, max_tokens=1, seed=0)


def searching(rng, name):
    return Request(
        request_id=name,
        prompt_ids=tuple(rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 40))),
        sampling=replace(PLAIN, max_tokens=rng.randint(1, 7)),
        end_ids=frozenset(rng.sample(range(VOCAB), 12)),
        task=BeamSearch(width=rng.randint(1, 5), length_penalty=rng.choice([0.0, 1.0, 2.0])),
    )


def scorer(subject, width):
    known = {}

    def score(tokens):
        if tokens not in known:
            alone = Request(
                request_id="alone", prompt_ids=tokens, sampling=replace(PLAIN, logprobs=2 * width)
            )
            entry = subject.solo(alone).logprobs[0]
            known[tokens] = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        return known[tokens]

    return score


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(5))
def test_searches_in_any_company_are_the_search_from_scratch(backend, seed):
    rng, subject = random.Random(seed), rig(backend)
    searches = [searching(rng, f"b{i}") for i in range(2)]
    others = random_requests(rng, 40, most_requests=3)
    core = subject.core(
        block_size=rng.choice([4, 16]),
        num_blocks=64,
        slots=rng.choice([5, 8]),
        budget=rng.choice([8, 64]),
        prefix_cache=rng.random() < 0.7,
    )
    lives = Drive(core).run([*searches, *others])
    for request in searches:
        assert lives[request.request_id].beams == by_rounds(request, scorer(subject, request.task.width))
    for request in others:
        assert lives[request.request_id].answer == subject.solo(request).answer


@pytest.fixture(scope="module")
def llm():
    with LLM(str(tiny_llama()), max_num_seqs=6, kv={"dtype": "f32"}) as made:
        yield made


def test_llm_gives_the_choices_best_first(llm):
    (result,) = llm.beam_search([5, 6, 7], BeamSearch(width=4), max_tokens=5)
    request = Request(
        request_id="r", prompt_ids=(5, 6, 7), sampling=replace(PLAIN, max_tokens=5), task=BeamSearch(width=4),
        end_ids=frozenset({END}),
    )  # fmt: skip
    want = by_rounds(request, scorer(rig(), 4))
    assert [c.index for c in result.choices] == [0, 1, 2, 3]
    assert [c.token_ids for c in result.choices] == [h.token_ids for h in want]
    assert [c.finish_reason for c in result.choices] == [h.finish.value for h in want]
    assert [c.cumulative_logprob for c in result.choices] == [h.logprob for h in want]
    assert result.usage.completion_tokens == sum(len(h.token_ids) for h in want)
    greedy = llm.beam_search([5, 6, 7], BeamSearch(width=1), max_tokens=5, ignore_eos=True)[0]
    plain = llm.generate([5, 6, 7], replace(PLAIN, max_tokens=5, ignore_eos=True))[0]
    assert greedy.token_ids == plain.token_ids


NOT = {"top_k": 3, "min_p": 0.1, "stop": "x", "logprobs": 1, "temperature": 0.5, "n": 4, "logit_bias": {1: 2}}


@pytest.mark.parametrize("name", NOT)
def test_what_does_not_apply_is_refused_by_name(name):
    with pytest.raises(RequestError) as caught:
        SamplingParams(beams=BeamSearch(width=3), **{name: NOT[name]})
    assert caught.value.param == name


def test_an_aborted_search_gives_everything_back():
    request = searching(random.Random(1), "b")
    request = replace(request, sampling=replace(PLAIN, max_tokens=50), end_ids=frozenset())
    lives = Drive(rig().core()).run([request], aborts={"b": 9})  # checks that nothing is held
    assert (lives["b"].finish, lives["b"].beams) == (FinishReason.ABORT, ())
