"""Whatever else runs, whenever it arrives, however it is cut: a request's answer equals its answer alone."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.engine import Drive, Rig, random_requests, random_shape, rig
from tests.kit.quantized import LENGTH, quantized_llama


def check_schedule(subject: Rig, alone: Rig, seed: int, most: int = 64, **limits) -> None:
    """One random schedule on `subject` against solo runs on `alone`."""
    rng = random.Random(seed)
    shape = random_shape(rng)
    capacity = shape["num_blocks"] * shape["block_size"]
    share = rng.choice([0.0, 0.0, 0.3, 0.8])
    requests = random_requests(rng, min(capacity, most), structured=share, **limits)
    arrivals = {r.request_id: rng.choice([0, 0, rng.randint(0, 20)]) for r in requests}
    aborts = {r.request_id: rng.randint(0, 25) for r in requests if rng.random() < 0.1}
    lives = Drive(subject.core(**shape)).run(requests, arrivals=arrivals, aborts=aborts)
    for request in requests:
        life = lives[request.request_id]
        want = alone.solo(request, shape["dtype"])
        if request.request_id in aborts:
            assert life.tokens == want.tokens[: len(life.tokens)]
            assert life.logprobs == want.logprobs[: len(life.logprobs)]
        else:
            assert life.answer == want.answer, (request, shape)


@settings(max_examples=220)
@given(st.integers(0, 2**32))
def test_any_schedule_equals_solo_runs_with_one_thread(seed):
    check_schedule(rig("native", 1), rig("native", 1), seed)


@settings(max_examples=80)
@given(st.integers(0, 2**32))
def test_any_schedule_with_two_threads_equals_solo_runs_with_one(seed):
    check_schedule(rig("native", 2), rig("native", 1), seed)


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_any_schedule_equals_solo_runs_on_the_reference(seed):
    check_schedule(rig("reference"), rig("reference"), seed, most=40)


@cache
def rounding_rig(threads: int, *, rounds: bool = True) -> Rig:
    return Rig(quantized_llama("bf16", 2), "native", threads, LENGTH, rounds=rounds)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_any_schedule_equals_solo_runs_with_rounded_activations(seed):
    """bfloat16 weights and activations, one thread against two."""
    check_schedule(rounding_rig(2), rounding_rig(1), seed)


def test_rounded_activations_give_other_log_probabilities():
    request = random_requests(random.Random(3), 40)[0]
    answers = [rounding_rig(1, rounds=rounds).solo(request).logprobs for rounds in (True, False)]
    assert answers[0] != answers[1]


@pytest.mark.slow
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_equals_solo_runs_on_a_real_model(smollm2_path, seed):
    subject = _real(smollm2_path)
    check_schedule(subject, subject, seed, most=48, most_requests=3, most_output=4)


_REAL: dict = {}


def _real(path) -> Rig:
    if path not in _REAL:
        _REAL[path] = Rig(path, "native", 2, length=512)
    return _REAL[path]
