"""A draft model: the same answers as without, and drafts that agree where they must.

A draft is never taken on trust, so a drafter that computes nonsense shows in nothing but its acceptance. So
what agrees is counted: a draft model that is the target must be right always, in any schedule, and another
pair as often as ever.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from headrace.base.request import Request, SamplingParams
from headrace.compute.spec import chain
from headrace.compute.spec.proposer import Ask
from tests.engine.test_speculation import HARD
from tests.kit.engine import VOCAB, Drive, Rig, rig, tiny_llama, write_checkpoint
from tests.kit.scripted import scripted_checkpoint
from tests.kit.solo import check_drafts

GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=100, ignore_eos=True)


@cache
def changed_rig(name: str, noise: float = 0.0, rows: int = VOCAB) -> Rig:
    """The tiny llama with noise on its matrices, and a head and embedding of so many rows."""
    import json

    source, rng = tiny_llama(), np.random.default_rng(3)
    tensors = load_file(source / "model.safetensors")
    for key in sorted(tensors):
        if tensors[key].ndim == 2:
            tensors[key] = tensors[key] + (rng.standard_normal(tensors[key].shape) * noise).astype(np.float32)
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        more = np.full((max(0, rows - VOCAB), tensors[key].shape[1]), 3.0, np.float32)
        tensors[key] = np.concatenate([tensors[key], more])[:rows]
    config = json.loads((source / "config.json").read_text()) | {"vocab_size": rows}
    return Rig(write_checkpoint(f"drafter-{name}", config, tensors), "native", 1)


def request(name: str = "r", num_prompt: int = 13, **sampling) -> Request:
    given_sampling = {"temperature": 0.0, "seed": 0, "max_tokens": 100} | sampling
    prompt = tuple(3 + i * 7 % 90 for i in range(num_prompt))
    return Request(request_id=name, prompt_ids=prompt, sampling=SamplingParams(**given_sampling))


def drafter_of(core):
    drafting = core.runner._parts.drafting
    (drafter,) = drafting._order_by_method[drafting._offered.method]
    return drafter


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_another_draft_model_equals_plain_solo_runs(seed):
    """SP-1."""
    check_drafts(rig("native", 1), rig("native", 1), seed, "draft=x", draft=changed_rig("near", 0.02))


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_in_any_schedule_a_draft_model_that_is_the_target_is_right(seed):
    """SP-3: chunks, forks, copies on write, cached prefixes, preemption and aborts leave its KV whole."""
    subject = rig("native", 1)
    counts = {}
    check_drafts(subject, subject, seed, "draft=x", draft=subject, counts=counts)
    assert counts.get("drafts_accepted", 0) == counts.get("drafts_checked", 0)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_with_two_threads_too(seed):
    subject, counts = rig("native", 2), {}
    check_drafts(subject, rig("native", 1), seed, "draft=x", draft=subject, counts=counts)
    assert counts.get("drafts_accepted", 0) == counts.get("drafts_checked", 0)


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_on_the_reference_too(seed):
    subject, counts = rig("reference"), {}
    check_drafts(subject, subject, seed, "draft=x", draft=subject, counts=counts)
    assert counts.get("drafts_accepted", 0) == counts.get("drafts_checked", 0)


def test_fixed_schedules_check_drafts():
    """The suites above would pass without any draft."""
    subject, counts = rig("native", 1), {}
    checked = [
        check_drafts(subject, subject, seed, "draft=x", draft=subject, counts=counts) for seed in range(25)
    ]
    assert sum(checked) > 300


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("sampling", HARD, ids="-".join)
def test_a_draft_model_that_is_the_target_accepts_all(sampling, depth):
    """SP-3: counted exactly; the last row drafts no more than is left."""
    subject, num = rig("native", 1), 51
    asked = request(**({"max_tokens": num, "seed": 4} | sampling))
    want = subject.solo(asked)
    assert len(want.tokens) == num
    core = subject.core(draft=subject, dtype="f32", speculate=f"draft=x,depth={depth}")
    assert Drive(core).run([asked])["r"].answer == want.answer
    counts = core.stats().counters
    assert (
        counts["drafts_accepted"]
        == counts["drafts_checked"]
        == counts["drafts_proposed"]
        == num - counts["steps"]
    )
    assert counts["steps"] == 1 + -(-(num - 1) // (depth + 1))


def accepted_by_place(temperature: float) -> tuple[int, list[int]]:
    """Rows that checked four drafts of a fixed pair on a fixed text, and how many were accepted by place."""
    subject = rig("native", 1)
    asked = request(max_tokens=180 - 13, temperature=temperature)
    core = subject.core(draft=changed_rig("near", 0.02), dtype="f32", speculate="draft=x,depth=4")
    assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
    counts = core.stats().counters
    return int(counts["draft_rows"]), [int(counts.get(f"drafts_accepted_{i}", 0)) for i in range(4)]


PINNED = {0.0: (80, [40, 24, 15, 7]), 1.0: (54, [42, 31, 24, 15])}


@pytest.mark.parametrize("temperature", PINNED)
def test_acceptance_by_place_of_a_fixed_pair_on_a_fixed_text(temperature):
    """SP-8: acceptance tells whether a drafter is fed what it should be; nothing else does."""
    assert accepted_by_place(temperature) == PINNED[temperature]


def test_a_drafter_that_is_fed_the_token_before_shows_in_acceptance(monkeypatch):
    """SP-8: the drafter's input shifted by one row; the answer is the same, the acceptance is not."""

    class Shifted(chain.Inputs):
        def gather(self, pieces):
            context = super().gather(pieces)
            (slot,) = {piece.slot for piece in pieces}
            context.token_ids[:] = self._state.tokens[slot, np.maximum(context.positions - 1, 0)]
            return context

    monkeypatch.setattr(chain, "Inputs", Shifted)
    rows, accepted = accepted_by_place(0.0)
    assert accepted[0] < PINNED[0.0][1][0]
    assert (rows, accepted) != PINNED[0.0]


@pytest.mark.parametrize("rows", [VOCAB - 9, VOCAB + 40])
def test_heads_of_other_sizes_are_drafted_with(rows):
    """SP-9: rows that the target lacks are never drafted; where both have rows, drafts agree."""
    subject, draft = rig("native", 1), changed_rig(f"rows-{rows}", rows=rows)
    bans = tuple((i,) for i in range(VOCAB - 9, VOCAB))
    known, unknown = (request(num_prompt=n, bad_words_ids=bans, temperature=1.0) for n in (12, 14))
    assert max(known.prompt_ids) < VOCAB - 9 <= max(unknown.prompt_ids)
    for asked in (known, unknown):
        core = subject.core(draft=draft, dtype="f32", speculate="draft=x,depth=3")
        assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
        counts = core.stats().counters
        if asked is known or rows > VOCAB:
            assert counts["drafts_accepted"] == counts["drafts_checked"] > 60


def test_a_long_prompt_is_taken_in_before_drafts_are_made():
    """At most so many tokens a step, in rows that draw all the same; what was not made counts as unmade."""
    subject = rig("native", 1)
    asked = request(num_prompt=150, max_tokens=30)
    core = subject.core(draft=subject, dtype="f32", speculate="draft=x,depth=4")
    results, run = [], core.runner.run
    core.runner.run = lambda plan: (results.append(run(plan)), results[-1])[1]
    assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
    rows = [result.rows[0] for result in results]
    assert [row.num_unmade for row in rows[:4]] == [0, 4, 4, 0]
    assert [len(row.tokens) for row in rows[:4]] == [1, 1, 1, 5]
    assert not any(row.num_unmade for row in rows[3:])
    counts = core.stats().counters
    assert counts["drafts_checked"] == counts["drafts_accepted"] == 30 - counts["steps"]
    assert all(result.draft_s > 0 for result in results[1:])


def test_cached_prompts_and_forks_are_not_taken_in_again():
    subject = rig("native", 1)
    core = subject.core(draft=subject, dtype="f32", speculate="draft=x,depth=4", block_size=16)
    first = [request("a", 100, max_tokens=20)]
    group = [request(f"b{i}", 100, max_tokens=20, seed=i, temperature=1.0) for i in range(3)]
    for run, new in ((first, 100 + 20), (group, 3 * (4 + 20))):
        before = drafter_of(core).num_taken_in
        lives = Drive(core).run(run)
        for asked in run:
            assert lives[asked.request_id].answer == subject.solo(asked).answer
        assert drafter_of(core).num_taken_in - before <= new
    counts = core.stats().counters
    assert counts["drafts_accepted"] == counts["drafts_checked"] > 50


def test_a_block_that_was_written_again_is_read_again():
    """Sequences in turn in the same blocks; the second shares the first and writes a part of the next."""
    subject = rig("native", 1)
    core = subject.core(draft=subject, dtype="f32", speculate="draft=x,depth=4", block_size=16)
    drafter, state = drafter_of(core), core.runner._parts.state
    whole = [3 + i * 7 % 90 for i in range(40)]
    found = []
    for ids in (whole, whole[:16] + [5] * 7, whole):
        state.tokens[0, : len(ids)], state.num_tokens[0] = ids, len(ids)
        state.tables[0, :4], state.num_blocks[0] = range(4), 4
        drafter.begin(0)
        drafts = []
        while not drafts:
            (drafts,) = drafter.propose([Ask(0, (), 8)])
        found.append(drafts)
    assert found[0] == found[2] != found[1]


def test_without_a_wish_for_drafts_the_draft_model_computes_nothing():
    subject = rig("native", 1)
    core = subject.core(draft=subject, dtype="f32", speculate="draft=x,depth=4")
    Drive(core).run([request(speculate="off")])
    assert drafter_of(core).num_taken_in == 0
    assert core.stats().counters.get("drafts_checked", 0) == 0


@pytest.mark.parametrize("depth", [1, 4, 8])
def test_an_end_within_an_accepted_run_ends_there(depth):
    path = scripted_checkpoint({i: i + 1 for i in range(3, 40)})
    subject = Rig(path, "native", 1, 256)
    asked = Request(
        request_id="r",
        prompt_ids=(3, 4),
        sampling=SamplingParams(temperature=0.0, seed=0, max_tokens=60),
        end_ids=frozenset({17}),
    )
    core = subject.core(draft=subject, speculate=f"draft=x,depth={depth}")
    life = Drive(core).run([asked])["r"]
    assert life.tokens == list(range(5, 18))
    assert life.finish is not None
    assert life.finish.value == "stop"
