"""The definition of sampling: order of operations, noise, penalties, reports; by hand-made numbers."""

import numpy as np
import pytest

from headrace.base.request import Request, SamplingParams
from headrace.compute.ops.api import SampleBatch
from headrace.compute.sampling.batch import Draw, SamplingState
from headrace.compute.sampling.logprobs import report
from headrace.compute.sampling.noise import gumbel, philox4x32, words
from headrace.compute.sampling.sampler import sample
from headrace.compute.sampling.seeds import choice_seed, request_seed
from headrace.compute.sampling.state import SeenCounts

VOCAB = 8
LOGITS = np.array([0.5, 2.0, 1.5, -1.0, 0.0, 1.0, -2.0, 0.25], np.float32)


def batch_for(sampling, prompt=(1, 1, 4), output=(), drafts=(), position=9, end_ids=()) -> SampleBatch:
    state = SamplingState(2, VOCAB)
    request = Request(request_id="r", prompt_ids=prompt, sampling=sampling, end_ids=frozenset(end_ids))
    state.begin(1, request, output)
    return state.batch([Draw(1, drafts)], np.array([1]), np.array([position], np.int32))


def drawn(logits=LOGITS, **options) -> int:
    names = {"prompt", "output", "drafts", "position", "end_ids"}
    rest = {k: options.pop(k) for k in list(options) if k in names}
    sampled = sample(logits[None].copy(), batch_for(SamplingParams(seed=3, **options), **rest))
    assert sampled.errors[0] == 0
    return int(sampled.tokens[0])


def many(count=4000, logits=LOGITS, **options) -> np.ndarray:
    """Frequencies of tokens over positions."""
    batch = batch_for(SamplingParams(seed=11, **options))
    got = np.zeros(VOCAB)
    for position in range(count):
        batch.positions = np.array([position], np.int32)
        got[sample(logits[None], batch).tokens[0]] += 1
    return got / count


def softmax(x) -> np.ndarray:
    e = np.exp(x - np.max(x))
    return e / e.sum()


def test_philox_gives_the_published_words():
    zeros, ones = np.zeros((4, 1), np.uint64), np.full((4, 1), 0xFFFFFFFF, np.uint64)
    assert philox4x32(zeros, (0, 0))[:, 0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    full = philox4x32(ones, (0xFFFFFFFF, 0xFFFFFFFF))[:, 0].tolist()
    assert full == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_noise_depends_on_seed_position_and_id_only():
    assert np.array_equal(words(7, 3, 100)[:40], words(7, 3, 40))
    rows = [words(7, 3, 64), words(8, 3, 64), words(7, 4, 64), words(7 + 2**32, 3, 64)]
    assert all((a != b).any() for i, a in enumerate(rows) for b in rows[:i])


def test_noise_is_standard_gumbel():
    noise = np.concatenate([gumbel(5, p, 2000) for p in range(100)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
    assert np.isfinite(noise).all()


def test_temperature_zero_takes_the_best_and_ties_go_to_the_lowest_id():
    assert drawn(temperature=0.0) == 1
    tied = LOGITS.copy()
    tied[5] = tied[1]
    assert drawn(logits=tied, temperature=0.0) == 1
    assert drawn(temperature=0.0, top_p=0.01, min_p=1.0, top_k=1) == 1
    assert drawn(temperature=1e-9) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature):
    want = softmax(LOGITS / temperature)
    assert np.abs(many(temperature=temperature) - want).sum() / 2 < 0.03


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 3}, {1, 2, 5}),
        ({"top_p": 0.6}, {1, 2}),
        ({"min_p": 0.5}, {1, 2}),
        ({"top_k": 2, "top_p": 0.99}, {1, 2}),
        ({"allowed_token_ids": (3, 6)}, {3, 6}),
        ({"logit_bias": ((1, -100.0), (2, -100.0))}, {0, 3, 4, 5, 6, 7}),
    ],
)
def test_filters_keep_exactly_these_tokens(options, kept):
    got = many(**options)
    scores = LOGITS + np.array([dict(options.get("logit_bias", ())).get(i, 0.0) for i in range(VOCAB)])
    want = np.array([np.exp(scores[i]) if i in kept else 0.0 for i in range(VOCAB)])
    assert set(np.flatnonzero(got)) <= kept
    assert np.abs(got - want / want.sum()).sum() / 2 < 0.03


def test_top_k_with_ties_keeps_the_lowest_ids():
    flat = np.zeros(VOCAB, np.float32)
    assert set(np.flatnonzero(many(logits=flat, top_k=3))) == {0, 1, 2}


def test_top_p_is_measured_after_top_k():
    flat = np.zeros(VOCAB, np.float32)
    assert set(np.flatnonzero(many(logits=flat, top_k=4, top_p=0.5))) == {0, 1}


def test_penalties_see_the_right_tokens():
    """Repetition: prompt and output. Presence and frequency: output only (field lesson SA-4)."""
    assert drawn(temperature=0.0, prompt=(1,), repetition_penalty=2.0) == 2
    assert drawn(temperature=0.0, prompt=(4,), output=(1,), repetition_penalty=2.0) == 2
    assert drawn(temperature=0.0, prompt=(1, 1, 1), presence_penalty=2.0, frequency_penalty=2.0) == 1
    assert drawn(temperature=0.0, prompt=(4,), output=(1,), presence_penalty=0.6) == 2
    assert drawn(temperature=0.0, prompt=(4,), output=(1,), frequency_penalty=0.3) == 1
    assert drawn(temperature=0.0, prompt=(4,), output=(1, 1), frequency_penalty=0.3) == 2


def test_drafts_count_as_output():
    assert drawn(temperature=0.0, prompt=(4,), drafts=(1, 1), frequency_penalty=0.3) == 2
    assert drawn(temperature=0.0, prompt=(4,), output=(1,), drafts=(1,), frequency_penalty=0.3) == 2


def test_seen_counts_grow_like_recounting():
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(0, 50, 100).tolist(), rng.integers(0, 300, 400).tolist()
    grown = SeenCounts(prompt, output[:200])
    for token in output[200:390]:
        grown.add(token)
    ids, counts = grown.arrays(output[390:])
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        i: output.count(i) for i in {*prompt, *output}
    }
    assert len(set(ids.tolist())) == len(ids)


def test_min_tokens_bans_end_ids_until_then():
    assert drawn(temperature=0.0, min_tokens=2, output=(3,), end_ids=(1, 2)) == 5
    assert drawn(temperature=0.0, min_tokens=2, output=(3,), drafts=(3,), end_ids=(1, 2)) == 1
    assert drawn(temperature=0.0, min_tokens=2, output=(3, 3), end_ids=(1, 2)) == 1


def test_bad_words_ban_their_last_token_after_the_rest():
    assert drawn(temperature=0.0, bad_words_ids=((1,),)) == 2
    assert drawn(temperature=0.0, bad_words_ids=((3, 1),), output=(3,)) == 2
    assert drawn(temperature=0.0, bad_words_ids=((3, 1),), output=(3, 4)) == 1
    assert drawn(temperature=0.0, bad_words_ids=((3, 4, 1),), output=(3,), drafts=(4,)) == 2
    assert drawn(temperature=0.0, bad_words_ids=((3, 1),), prompt=(3,)) == 1


def test_nan_and_infinity_end_only_their_row():
    """Field lesson SA-9."""
    state = SamplingState(3, VOCAB)
    for slot in range(3):
        state.begin(slot, Request(request_id="r", prompt_ids=(1,), sampling=SamplingParams(seed=1)), ())
    logits = np.stack([LOGITS, LOGITS, LOGITS])
    logits[0, 5], logits[1, 2] = np.nan, np.inf
    draws = [Draw(slot) for slot in range(3)]
    got = sample(logits, state.batch(draws, np.arange(3), np.full(3, 4, np.int32)))
    assert got.errors.tolist() == [1, 1, 0]
    assert got.tokens[2] >= 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sa9_a_logit_that_a_penalty_makes_infinite_is_an_error(temperature):
    batch = batch_for(SamplingParams(seed=1, repetition_penalty=0.01, temperature=temperature), prompt=(1,))
    logits = np.full((1, VOCAB), 3e38, np.float32)
    with np.errstate(over="ignore"):
        sampled = sample(logits, batch)
    assert (sampled.tokens[0], sampled.errors[0]) == (-1, 1)


def test_a_row_without_any_token_left_is_an_error():
    batch = batch_for(SamplingParams(seed=1, allowed_token_ids=(3,), bad_words_ids=((3,),)))
    assert sample(LOGITS[None], batch).errors[0] == 2


@pytest.mark.parametrize("temperature", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_reported_logprobs_are_the_raw_model_values(temperature, k):
    """Field lesson SA-5: independent of temperature, filters and of how many are asked for."""
    options = {"temperature": temperature, "logprobs": k, "top_k": 4, "presence_penalty": 1.0, "seed": 2}
    got = sample(LOGITS[None], batch_for(SamplingParams(**options), output=(1,)))
    want = LOGITS - np.log(np.exp(LOGITS).sum())
    token = got.tokens[0]
    assert got.logprobs[0] == pytest.approx(want[token], abs=1e-6)
    order = np.argsort(-LOGITS, kind="stable")
    assert got.ranks[0] == order.tolist().index(token) + 1
    assert got.top_ids[0].tolist() == order[:k].tolist()
    assert got.top_logprobs[0] == pytest.approx(want[order[:k]], abs=1e-6)


def test_the_reported_distribution_sums_to_one():
    full = report(np.repeat(LOGITS[None], VOCAB, 0), np.arange(VOCAB, dtype=np.int32), 0)
    assert np.exp(full.logprobs).sum() == pytest.approx(1.0, abs=1e-6)


def test_seeds_of_choices_and_requests():
    """Field lesson SA-3."""
    assert choice_seed(5, 0) == 5
    seeds = [choice_seed(5, i) for i in range(50)] + [request_seed(5, i) for i in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds)
    assert choice_seed(5, 3) == choice_seed(5, 3) != choice_seed(6, 3)


@pytest.mark.parametrize("top_k", [VOCAB, VOCAB + 1, 2**31, 2**70])
def test_any_top_k_above_the_vocabulary_is_off(top_k):
    assert drawn(top_k=top_k, temperature=1.3) == drawn(temperature=1.3)
