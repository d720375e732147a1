"""Drafters that cannot draw, lack what they need, or break: answers are those without drafts."""

import itertools
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.base.errors import CheckpointError
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import BeamSearch
from headrace.compute.spec.faults import MAX_FAULTS
from tests.engine.test_draft_model import changed_rig, drafter_of, request
from tests.engine.test_heads import ask
from tests.kit.engine import GRAMMARS, VOCAB, Drive, Rig, rig, write_checkpoint
from tests.kit.heads import WIDTH, counting, random_eagle, scripted_eagle, scripted_medusa

KINDS = ("medusa", "eagle")
NOTHING_LEFT = {"allowed_token_ids": (5,), "bad_words_ids": ((5, 5),)}
"""The first token is 5, and none may follow it."""


def heads(kind: str, folder: Path) -> Path:
    """Heads that know what follows."""
    make = scripted_medusa if kind == "medusa" else scripted_eagle
    return make(folder, counting()[1])


def spoil(folder: Path, value: float) -> None:
    """Put a value where all logits depend on it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if name == "fc.weight" or name.startswith("lm_heads."):
            tensors[name][:] = value
    save_file(tensors, path)


@cache
def target() -> Rig:
    return Rig(counting()[0], "native", 1, 256)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_where_no_token_may_follow_no_draft_does(tmp_path, kind, temperature):
    core = target().core(speculate=f"{kind}={heads(kind, tmp_path)},depth=3")
    asked = ask("r", temperature=temperature, **NOTHING_LEFT)
    lives = Drive(core).run([asked, ask("beside")])
    assert lives["r"].answer == target().solo(asked).answer
    assert lives["r"].tokens == [5]
    assert lives["r"].error is not None
    assert lives["beside"].tokens == list(range(23, 74))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_with_broken_weights_are_refused_at_the_start(tmp_path, kind, value):
    folder = heads(kind, tmp_path)
    spoil(folder, value)
    name = "fc.weight" if kind == "eagle" else "lm_heads.0.weight"
    with pytest.raises(CheckpointError, match=f"'{name}' of .* holds NaN or infinite values: .* train or"):
        target().core(speculate=f"{kind}={folder},depth=3")


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_cannot_be_drawn_ends_its_row_and_no_other(tmp_path, kind):
    """After 23 and 24 nothing may follow; a draft of each is made before that shows."""
    core = target().core(speculate=f"{kind}={heads(kind, tmp_path)},depth=3")
    ends = ask("r", allowed_token_ids=(23, 24), bad_words_ids=((23, 24, 23), (24, 24), (23, 23), (24, 23)))
    lives = Drive(core).run([ends, ask("beside")])
    assert lives["r"].answer == target().solo(ends).answer
    assert lives["r"].tokens == [23, 24]
    assert lives["beside"].tokens == list(range(23, 74))
    assert core.stats().counters["drafts_accepted"] > 30


@pytest.mark.parametrize("num_prompt", [40, 150])
def test_tokens_that_a_smaller_vocabulary_lacks_are_taken_in(num_prompt):
    """SP-9: a prompt of more tokens than are taken in while drafting."""
    subject, rows = rig("native", 1), VOCAB - 9
    asked = request(num_prompt=num_prompt, max_tokens=30)
    assert max(asked.prompt_ids) >= rows
    core = subject.core(draft=changed_rig("few", rows=rows), dtype="f32", speculate="draft=x,depth=3")
    assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
    assert drafter_of(core).num_taken_in > num_prompt
    assert core.stats().counters["drafts_checked"] > 5


BROKEN = 25


@cache
def breaking_target() -> Rig:
    """A target that counts, and whose logits are NaN after the token `BROKEN`."""
    path, _ = counting()
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][BROKEN] = np.nan
    config = json.loads((path / "config.json").read_text())
    return Rig(write_checkpoint("breaking", config, tensors), "native", 1, 256)


@pytest.mark.parametrize("kind", [*KINDS, "draft"])
def test_a_target_that_breaks_after_accepted_drafts_ends_its_answer(tmp_path, kind):
    """Tokens up to the break stand, with none behind them drawn: as many as the drafter knew, or fewer."""
    source = "x" if kind == "draft" else heads(kind, tmp_path)
    core = breaking_target().core(
        draft=target() if kind == "draft" else None, dtype="f32", speculate=f"{kind}={source},depth=5"
    )
    asked = ask("r")
    lives = Drive(core).run([asked, ask("beside", 40)])
    assert lives["r"].answer == breaking_target().solo(asked).answer
    assert lives["r"].tokens == [23, 24, 25]
    assert "NaN" in (lives["r"].error or "")
    assert lives["beside"].tokens == list(range(60, 111))
    assert core.stats().counters["drafts_accepted"] >= 40


def fail(drafter, method: str, calls: range) -> None:
    """Let a drafter's method raise in these of its calls, after its work is done."""
    inner, count = getattr(drafter, method), itertools.count()

    def raising(*args):
        found = inner(*args)
        if next(count) in calls:
            raise ArithmeticError("an accident")
        return found

    setattr(drafter, method, raising)


def with_drafts(kind: str, folder: Path):
    """An engine whose drafts are made so."""
    source = f"={heads(kind, folder)}" if kind in KINDS else "=x" * (kind == "draft")
    draft = target() if kind == "draft" else None
    return target().core(draft=draft, dtype="f32", speculate=f"{kind}{source},depth=3")


ASKED = [(kind, "propose") for kind in ("draft", "medusa", "eagle", "ngram")]
TOLD = [(kind, "observe") for kind in KINDS]
MOVED = [(kind, method) for kind, _ in ASKED for method in ("begin", "end")]


@pytest.mark.parametrize(("kind", "method"), ASKED + TOLD + MOVED)
def test_a_drafter_that_raises_once_costs_its_drafts_and_no_more(tmp_path, caplog, kind, method):
    core = with_drafts(kind, tmp_path)
    first = 0 if method == "end" else 1
    fail(drafter_of(core), method, range(first, first + 1))
    asked = [ask("r", ignore_eos=True), ask("s", 40, ignore_eos=True), ask("t", 60, max_tokens=5)]
    lives = Drive(core, draft_faults=1).run(asked, arrivals={"t": 8})
    for each in asked:
        assert lives[each.request_id].answer == target().solo(each).answer
    assert [record.message for record in caplog.records] == [
        f"making drafts by {kind} failed; answers go on without them"
    ]
    counts = core.stats().counters
    assert counts["draft_faults"] == 1
    if kind != "ngram":  # a text that counts repeats nothing
        assert counts["drafts_accepted"] > 20


@pytest.mark.parametrize(("kind", "method"), ASKED + TOLD)
def test_a_drafter_that_always_raises_is_switched_off(tmp_path, caplog, kind, method):
    core = with_drafts(kind, tmp_path)
    fail(drafter_of(core), method, range(1000))
    calls = []
    inner = getattr(drafter_of(core), method)
    setattr(drafter_of(core), method, lambda *args: (calls.append(args), inner(*args))[1])
    plans, run = [], core.runner.run
    core.runner.run = lambda plan: (plans.append(plan), run(plan))[1]
    asked = [ask("r"), ask("s", 40), ask("t", 60, max_tokens=9)]
    lives = Drive(core, draft_faults=MAX_FAULTS).run(asked, arrivals={"t": 20})
    for each in asked:
        assert lives[each.request_id].answer == target().solo(each).answer
    assert len(calls) == core.stats().counters["draft_faults"] == MAX_FAULTS
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "switched off" in caplog.records[1].message
    assert core.stats().counters["drafts_checked"] == 0
    assert not any(row.num_drafts for plan in plans[6:] for row in plan.rows), "drafts that nobody makes"


def test_drafts_of_others_go_on_when_one_proposer_is_switched_off():
    core = target().core(speculate="auto,depth=3")
    (suffix,) = core.runner._parts.drafting._order_by_method["suffix"]
    fail(suffix, "propose", range(1000))
    text = (*range(30, 60), 30, 31, 32)
    asked = Request(request_id="r", prompt_ids=text, sampling=SamplingParams(temperature=0.0, seed=0))
    lives = Drive(core, draft_faults=MAX_FAULTS).run([asked])
    assert lives["r"].answer == target().solo(asked).answer
    assert core.stats().counters["drafts_checked"] > 0


@pytest.mark.parametrize(
    "wish",
    [
        {"sampling": SamplingParams(temperature=0.0, seed=0, max_tokens=8, structured=GRAMMARS[1])},
        {"task": BeamSearch(width=2), "sampling": SamplingParams(temperature=0.0, seed=0, max_tokens=8)},
        {"sampling": SamplingParams(temperature=0.0, seed=0, max_tokens=8, speculate="off")},
    ],
    ids=["structured", "beams", "off"],
)
def test_nothing_is_kept_of_answers_that_are_never_drafted(tmp_path, wish):
    """Structured ones and beams check no drafts, so their states are not taken in either."""
    subject = rig("native", 1)
    core = subject.core(speculate=f"eagle={random_eagle(tmp_path, 32, VOCAB)}")
    drafter, seen = drafter_of(core), []
    observe = drafter.observe
    drafter.observe = lambda told: (observe(told), seen.append(dict(drafter._waiting)))
    asked = Request(request_id="r", prompt_ids=tuple(range(3, 60)), **wish)
    Drive(core).run([asked])
    assert seen
    assert not any(seen)
    Drive(core).run([request("plain")])
    assert any(seen)


def sizes_on_disk(folder: Path) -> int:
    """Bytes of matrices in a folder of heads."""
    tensors = load_file(folder / "model.safetensors")
    return sum(t.nbytes for t in tensors.values() if t.ndim == 2)


@pytest.mark.parametrize("kind", ["draft", "medusa", "eagle", "early-exit"])
def test_what_drafting_reads_is_counted(tmp_path, kind):
    """Weights once a pass, keys and values: else steps with drafts would seem slower than memory allows."""
    subject = target()
    folder = heads(kind, tmp_path) if kind in KINDS else None
    source = folder or {"draft": "x", "early-exit": "1"}[kind]
    core = subject.core(
        draft=subject if kind == "draft" else None, dtype="f32", speculate=f"{kind}={source},depth=3"
    )
    weights = {"draft": subject.model.weight_bytes, "early-exit": 0}.get(kind)
    if folder is not None:
        weights = sizes_on_disk(folder)
        # zero matrices beside those of the four blocks
        weights += 4 * 4 * WIDTH * WIDTH * (kind == "medusa")
    assert core.runner.draft_weight_bytes == weights
    results, run = [], core.runner.run
    core.runner.run = lambda plan: (results.append(run(plan)), results[-1])[1]
    plain = subject.core(dtype="f32")
    plain_results, plain_run = [], plain.runner.run
    plain.runner.run = lambda plan: (plain_results.append(plain_run(plan)), plain_results[-1])[1]
    for each in (core, plain):
        Drive(each).run([ask("r", num_prompt=10, max_tokens=9)])
    assert len(results[1].rows[0].tokens) == 4
    token_bytes = plain_results[2].bytes_read - plain_results[1].bytes_read
    model = subject.model
    # A draft reads the weights that make it: a head of four, or the one layer and the head of the target.
    weights = {"medusa": weights // 4, "early-exit": model.layer_bytes[0] + model.head_bytes}.get(
        kind, weights
    )
    weights += model.head_bytes * (kind == "eagle")  # EAGLE-1 shares it
    # .. and keys and values: 11 tokens stand before the first draft, of EAGLE's places one less.
    keys = {"medusa": 0, "eagle": 10 + 11 + 12}.get(kind, 11 + 12 + 13)
    key_bytes = {"eagle": 2 * 4 * 32}.get(kind, token_bytes)
    drafting = 3 * weights + keys * key_bytes
    assert results[1].bytes_read == plain_results[1].bytes_read + 3 * token_bytes + drafting
    assert results[0].bytes_read == plain_results[0].bytes_read
