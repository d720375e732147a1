"""A draft model: the same answers as without, and drafts that agree where they must."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.request import Request, SamplingParams
from tests.engine.test_speculation import HARD, repetitive
from tests.kit.engine import Drive, Rig, random_requests, random_shape, rig, tiny_llama


def other_rig() -> Rig:
    """A model that agrees with the tiny llama by chance only."""
    return Rig(tiny_llama(seed=6), "native", 1)


def check(subject: Rig, alone: Rig, draft: Rig, seed: int) -> int:
    """A random schedule with a draft model against solo runs without; returns the drafts checked."""
    rng = random.Random(seed)
    shape = random_shape(rng)
    capacity = shape["num_blocks"] * shape["block_size"]
    requests = repetitive(
        rng, random_requests(rng, min(capacity, 64), structured=rng.choice([0.0, 0.5]), most_output=24)
    )
    depth = rng.choice(["", "", *(f",depth={k}" for k in range(1, 9))])
    core = subject.core(draft=draft, **shape, speculate="draft=x" + depth)
    arrivals = {r.request_id: rng.choice([0, 0, rng.randint(0, 20)]) for r in requests}
    aborts = {r.request_id: rng.randint(0, 25) for r in requests if rng.random() < 0.1}
    lives = Drive(core).run(requests, arrivals=arrivals, aborts=aborts)
    for request in requests:
        life, want = lives[request.request_id], alone.solo(request, shape["dtype"])
        if request.request_id in aborts:
            assert life.tokens == want.tokens[: len(life.tokens)]
            assert life.logprobs == want.logprobs[: len(life.logprobs)]
        elif want.error:
            assert (life.tokens, life.logprobs, life.error) == (want.tokens, want.logprobs, want.error)
        else:
            assert life.answer == want.answer, (request, shape)
    return int(core.stats().counters.get("drafts_checked", 0))


@pytest.mark.parametrize("who", ["itself", "another"])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_a_draft_model_equals_plain_solo_runs(who, seed):
    """SP-1."""
    subject = rig("native", 1)
    check(subject, subject, subject if who == "itself" else other_rig(), seed)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("sampling", HARD, ids="-".join)
def test_a_draft_model_that_is_the_target_accepts_all(sampling, depth):
    """SP-3: counted exactly; the last row drafts no more than is left."""
    subject, num = rig("native", 1), 51
    request = Request(
        request_id="r",
        prompt_ids=tuple(range(3, 16)),
        sampling=SamplingParams(seed=4, max_tokens=num, **sampling),
    )
    want = subject.solo(request)
    assert len(want.tokens) == num
    core = subject.core(draft=subject, dtype="f32", speculate=f"draft=x,depth={depth}")
    lives = Drive(core).run([request])
    assert lives["r"].answer == want.answer
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] == num - counts["steps"]
    assert counts["steps"] == 1 + -(-(num - 1) // (depth + 1))
