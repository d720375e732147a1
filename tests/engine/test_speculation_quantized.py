"""Drafts for quantized targets: rows that check drafts must get the bits of single-token rows (SP-1)."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from tests.kit.drafts import set_price
from tests.kit.engine import VOCAB, Drive, Rig
from tests.kit.heads import KINDS, random_heads
from tests.kit.quantized import LENGTH, WIDTH, quantized_llama
from tests.kit.solo import check_drafts

SCHEMES = ("q8_0", "q4_k")
LAYERS = 4
METHODS = ("ngram", "suffix", "auto", "draft", "early-exit=1", "early-exit=4")


@cache
def quantized_rig(scheme: str, threads: int = 1) -> Rig:
    return Rig(quantized_llama(scheme, LAYERS), "native", threads, LENGTH)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    return random_heads(tmp_path_factory.mktemp("heads"), WIDTH, VOCAB)


def run(scheme: str, method: str, seed: int, threads: int = 1) -> tuple[int, int]:
    """A random schedule; (drafts checked, drafts accepted)."""
    # The other scheme's model has nearly the same weights, so its drafts are often right and sometimes not.
    draft = quantized_rig(*set(SCHEMES) - {scheme}) if method == "draft" else None
    counts: dict[str, float] = {}
    subject, alone = quantized_rig(scheme, threads), quantized_rig(scheme)
    check_drafts(subject, alone, seed, "draft=x" if draft else method, draft=draft, counts=counts)
    return int(counts.get("drafts_checked", 0)), int(counts.get("drafts_accepted", 0))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_equals_plain_solo_runs(scheme, method, seed):
    """SP-1, SP-10."""
    checked, accepted = run(scheme, method, seed)
    assert accepted == checked or method != f"early-exit={LAYERS}"


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_two_threads_equals_plain_solo_runs(scheme, seed):
    run(scheme, "draft", seed, threads=2)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_heads_equals_plain_solo_runs(heads, scheme, kind, seed):
    """SP-1."""
    check_drafts(quantized_rig(scheme), quantized_rig(scheme), seed, heads[kind])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_schedules_above_check_drafts(heads, scheme):
    for method in METHODS:
        found = [run(scheme, method, seed) for seed in range(8)]
        assert sum(checked for checked, _ in found) > 15, method
        if method in ("draft", "early-exit=1"):
            assert 0 < sum(accepted for _, accepted in found) < sum(checked for checked, _ in found)
    for kind in KINDS:
        subject = quantized_rig(scheme)
        assert sum(check_drafts(subject, subject, seed, heads[kind]) for seed in range(6)) > 15, kind


def run_200(scheme: str, method: str, price=None) -> dict[str, float]:
    """200 greedy tokens each, with cached prefixes and preemption, held against solo runs; what was counted.

    `price`: (rows, drafts) -> seconds of a step, by which depths are chosen instead of by the clock.
    """
    subject, rng = quantized_rig(scheme), random.Random(3)
    shared = tuple(rng.randrange(3, VOCAB) for _ in range(32))
    requests = [
        Request(
            request_id=RequestId(f"r{i}"),
            prompt_ids=(*shared, *(rng.randrange(3, VOCAB) for _ in range(i))),
            sampling=SamplingParams(temperature=0.0, seed=i, max_tokens=200, logprobs=1),
        )
        for i in range(5)
    ]
    name, _, depth = method.partition(",")
    draft = quantized_rig(*set(SCHEMES) - {scheme}) if name == "draft" else None
    core = subject.core(
        draft,
        dtype="f16",
        block_size=8,
        num_blocks=72,
        slots=4,
        budget=40,
        speculate=("draft=x" if draft else name) + (f",{depth}" if depth else ""),
    )
    if price is not None:
        set_price(core, price)
    lives = Drive(core).run(requests, arrivals={r.request_id: 4 * min(i, 1) for i, r in enumerate(requests)})
    assert min(lives[f"r{i}"].cached for i in range(1, 5)) >= 24
    assert sum(life.preempted for life in lives.values()) > 0
    for request in requests:
        assert len(lives[request.request_id].tokens) == 200
        assert lives[request.request_id].answer == subject.solo(request, "f16").answer
    counts = core.stats().counters
    return {
        name: count for name, count in counts.items() if name.startswith("draft") and "second" not in name
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["early-exit=1,depth=3", "draft,depth=4"])
def test_200_greedy_tokens_with_cached_prefixes_and_preemption(scheme, method):
    """SP-10: exit at layer 1 of 4; checks fill all layers of what stands; rejected drafts leave nothing."""
    counts = run_200(scheme, method)
    assert 0 < counts["drafts_accepted"] < counts["drafts_checked"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["early-exit=1", "draft"])
def test_200_greedy_tokens_with_depths_that_follow_the_price(scheme, method):
    """SP-6, SP-10: drafts that cost nothing are checked, and those that cost a step each are only tried."""
    free = run_200(scheme, method, lambda rows, _: 0.01 + 0.001 * rows)
    assert 0 < free["drafts_accepted"] < free["drafts_checked"]
    assert free == run_200(scheme, method, lambda rows, _: 0.01 + 0.001 * rows)
    dear = run_200(scheme, method, lambda rows, drafts: 0.01 + 0.001 * rows + 0.02 * drafts)
    assert 0 < 10 * dear["drafts_checked"] < free["drafts_checked"]
