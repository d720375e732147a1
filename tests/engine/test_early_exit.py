"""Early exit: the same answers as without, and all drafts accepted where they come from all layers."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.config import EngineConfig, SpeculateConfig
from headrace.base.errors import ConfigError
from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from headrace.engine.build import open_model
from headrace.engine.drafts.early_exit import check_exit
from tests.engine.test_speculation import HARD
from tests.kit.engine import VOCAB, Drive, rig, tiny_llama
from tests.kit.solo import check_drafts

LAYERS = 2
"""Of the tiny llama."""


@pytest.mark.parametrize("count", [1, LAYERS])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_an_early_exit_equals_plain_solo_runs(count, seed):
    """SP-1, SP-10: depths 1 to 8 and chosen ones, chunks, cached prefixes, preemption, n > 1."""
    subject = rig("native", 1)
    check_drafts(subject, subject, seed, f"early-exit={count}")


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_two_threads_equals_plain_solo_runs(seed):
    check_drafts(rig("native", 2), rig("native", 1), seed, "early-exit=1")


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_equals_plain_solo_runs_on_the_reference(seed):
    check_drafts(rig("reference"), rig("reference"), seed, "early-exit=1")


def test_the_schedules_above_check_drafts():
    subject = rig("native", 1)
    counts = [check_drafts(subject, subject, seed, "early-exit=2") for seed in range(12)]
    assert sum(counts) > 100


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("sampling", HARD, ids="-".join)
def test_all_layers_accept_all(sampling, depth):
    """SP-3, SP-10: counted exactly; the last row drafts no more than is left."""
    subject, num = rig("native", 1), 51
    request = Request(
        request_id=RequestId("r"),
        prompt_ids=tuple(range(3, 16)),
        sampling=SamplingParams(seed=4, max_tokens=num, **sampling),
    )
    want = subject.solo(request)
    core = subject.core(dtype="f32", speculate=f"early-exit={LAYERS},depth={depth}")
    lives = Drive(core).run([request])
    assert lives["r"].answer == want.answer
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] == num - counts["steps"]
    assert counts["steps"] == 1 + -(-(num - 1) // (depth + 1))


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
def test_all_layers_accept_all_behind_a_cached_prefix_and_after_preemption(dtype):
    """SP-10: what the drafts stand on is the target's own KV, wherever it came from."""
    subject, rng = rig("native", 1), random.Random(3)
    shared = tuple(rng.randrange(3, VOCAB) for _ in range(16))
    requests = [
        Request(
            request_id=RequestId(f"r{i}"),
            prompt_ids=(*shared, 3 + i),
            sampling=SamplingParams(temperature=i % 2, seed=i, max_tokens=30),
        )
        for i in range(5)
    ]
    core = subject.core(
        dtype=dtype, block_size=4, num_blocks=20, slots=4, speculate=f"early-exit={LAYERS},depth=3"
    )
    lives = Drive(core).run(requests, arrivals={r.request_id: 2 * min(i, 1) for i, r in enumerate(requests)})
    assert min(lives[f"r{i}"].cached for i in range(1, 5)) == 16
    assert sum(life.preempted for life in lives.values()) > 0
    for request in requests:
        assert lives[request.request_id].answer == subject.solo(request, dtype).answer
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] > 40


def test_one_layer_of_two_agrees_as_often_as_it_did():
    """Pinned: drafts that stand at another place, or on other KV, agree less and change no token."""
    subject = rig("native", 1)
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=150, repetition_penalty=0.8)
    request = Request(request_id=RequestId("r"), prompt_ids=tuple(range(3, 16)), sampling=sampling)
    core = subject.core(dtype="f32", speculate="early-exit=1,depth=2")
    assert Drive(core).run([request])["r"].answer == subject.solo(request).answer
    counts = core.stats().counters
    found = [int(counts[n]) for n in ("draft_rows", "drafts_accepted_0", "drafts_accepted_1")]
    assert found == [98, 34, 16]


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_a_draft_reads_the_first_layers_again_and_their_keys(dtype):
    """Of two layers one, and the head, once for each draft; the check reads all layers once."""
    subject = rig("native", 1)
    reads = {}
    for speculate in ("off", "early-exit=1,depth=3"):
        core = subject.core(dtype=dtype, speculate=speculate)
        results, run = [], core.runner.run
        core.runner.run = lambda plan, results=results, run=run: (results.append(run(plan)), results[-1])[1]
        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=30)
        Drive(core).run(
            [Request(request_id=RequestId("r"), prompt_ids=tuple(range(3, 16)), sampling=sampling)]
        )
        reads[speculate] = [result.bytes_read for result in results]
    plain, drafting = reads.values()
    model = subject.model
    assert model.layer_bytes[0] * 2 + model.head_bytes * 2 > model.weight_bytes > sum(model.layer_bytes)
    token = plain[2] - plain[1]
    draft_keys = (14 + 15 + 16) * token // 2
    assert drafting[0] == plain[0]
    assert drafting[1] == plain[1] + 3 * token + 3 * (model.layer_bytes[0] + model.head_bytes) + draft_keys


@pytest.mark.parametrize("count", ["0", "3", "-1", "x", "99999", "\u0661"])
def test_another_number_of_layers_is_refused(count):
    config = EngineConfig(speculate=SpeculateConfig(method=f"early-exit={count}"))
    config = replace(config, model=replace(config.model, model=str(tiny_llama())))
    with pytest.raises(ConfigError, match=r"first N layers of the model, 1 to 2, got") as caught:
        open_model(config, with_text=False)
    assert caught.value.param == "speculate.method"


def test_angles_that_depend_on_the_prompt_are_refused():
    config = EngineConfig(speculate=SpeculateConfig(method="early-exit=1"))
    spec = rig("native", 1).checkpoint.spec
    check_exit(config, spec)
    layer = spec.layers[0]
    turned = replace(layer.attention, rope=replace(layer.attention.rope, kind="dynamic"))
    with pytest.raises(ConfigError, match="rotary embeddings of kind dynamic"):
        check_exit(config, replace(spec, layers=(replace(layer, attention=turned), *spec.layers[1:])))


def test_the_settings_and_the_memory_tell_of_it():
    def resolved(method):
        config = EngineConfig(speculate=SpeculateConfig(method=method))
        return open_model(
            replace(config, model=replace(config.model, model=str(tiny_llama()))), with_text=False
        ).resolved

    plain, half, whole = (
        {s.name: s for s in resolved(method).settings} for method in ("ngram", "early-exit=1", "early-exit=2")
    )
    assert "layers" not in plain["speculate.method"].reason
    assert "the first 1 of 2 layers draft" in half["speculate.method"].reason
    assert "cannot pay" not in half["speculate.method"].reason
    assert "cannot pay" in whole["speculate.method"].reason
    assert half["kv.pool_bytes"].reason.endswith(plain["kv.pool_bytes"].reason.split(" x ")[1])  # no plane
