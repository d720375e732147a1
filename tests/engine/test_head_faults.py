"""Heads that say nothing of use, and passes that a drafter did not see: answers stay, drafting goes on."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headrace.compute.runner import runner as runner_page
from headrace.compute.runner.seen import seen_in_pass
from headrace.compute.spec.states import Seen
from tests.engine.test_heads import ask
from tests.kit.engine import VOCAB, Drive, Rig, rig
from tests.kit.heads import counting, random_eagle, random_medusa, scripted_eagle


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["medusa", "eagle-1"])
def test_heads_whose_logits_are_infinite_draft_nothing(tmp_path, kind, temperature):
    """Heads that were trained badly cost time: no engine, and no token."""
    make, name = (random_medusa, "medusa") if kind == "medusa" else (random_eagle, "eagle")
    folder = make(tmp_path / "heads", 32, VOCAB)
    tensors = load_file(folder / "model.safetensors")
    for key in tensors:
        if key.startswith(("lm_heads", "fc")) and tensors[key].ndim == 2:
            tensors[key] = np.copysign(np.float32(1e38), tensors[key])
    save_file(tensors, folder / "model.safetensors")
    subject = rig("native", 1)
    requests = [ask(f"r{i}", num_prompt=9 + i, temperature=temperature) for i in range(3)]
    for depth in ("", ",depth=3"):
        core = subject.core(dtype="f32", speculate=f"{name}={folder}{depth}")
        lives = Drive(core).run(requests)
        for request in requests:
            assert lives[request.request_id].answer == subject.solo(request).answer
        assert core.stats().counters["drafts_checked"] == 0


@pytest.mark.parametrize("feeds", ["feature", "token"])
def test_a_pass_that_was_not_seen_costs_its_own_places(tmp_path, feeds, monkeypatch):
    """What waits begins anew where a pass does not follow on: features stay with their tokens."""
    num_passes = 0

    def forgetful(pieces, outcomes, context, kept):
        nonlocal num_passes
        num_passes += 1
        seen = seen_in_pass(pieces, outcomes, context, kept)
        return Seen([] if num_passes == 2 else seen.rows, seen.token_ids, seen.kept)

    monkeypatch.setattr(runner_page, "seen_in_pass", forgetful)
    path, table = counting()
    heads = scripted_eagle(tmp_path / "heads", table, feeds=feeds)
    # Pieces of 8 tokens: 3 to 10 are seen, 11 to 18 are not, 19 to 26 are.
    core = Rig(path, "native", 1, 256).core(
        num_blocks=64, budget=8, dtype="f32", speculate=f"eagle={heads},depth=4"
    )
    assert Drive(core).run([ask("r", num_prompt=24)])["r"].tokens == list(range(27, 78))
    counts = core.stats().counters
    assert num_passes > 3
    assert counts["drafts_accepted"] == counts["drafts_checked"] > 35
