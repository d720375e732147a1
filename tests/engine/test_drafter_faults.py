"""Drafters that cannot draw, lack what they need, or break: answers are those without drafts."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.engine.test_draft_model import changed_rig, drafter_of, request
from tests.engine.test_heads import ask
from tests.kit.engine import VOCAB, Drive, Rig, rig
from tests.kit.heads import counting, scripted_eagle, scripted_medusa

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
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_with_broken_weights_draft_nothing(tmp_path, kind, temperature, value):
    folder = heads(kind, tmp_path)
    spoil(folder, value)
    core = target().core(speculate=f"{kind}={folder},depth=3")
    asked = ask("r", temperature=temperature)
    assert Drive(core).run([asked])["r"].answer == target().solo(asked).answer
    assert core.stats().counters["drafts_checked"] == 0


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
