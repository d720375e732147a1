"""Pooled hidden states as vectors: those of transformers, bounded, and the same however they are computed.

That no schedule changes their bits is part of the random schedules of `test_exactness`.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.tasks import Pooling
from headrace.engine.llm import LLM
from headrace.engine.sizing import StepShape
from tests.kit.backends import BACKENDS
from tests.kit.checkpoints import FAMILIES, make, tokens
from tests.kit.engine import LENGTH, VOCAB, Drive, Rig, rig, tiny_llama

PARAMS = SamplingParams(max_tokens=1, seed=0)


def pooled(name, prompt, pooling, **more):
    return Request(request_id=name, prompt_ids=tuple(prompt), sampling=PARAMS, task=pooling, **more)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_transformers(family, backend):
    made, prompt = make(family), tokens(70)
    with torch.no_grad():
        states = made.model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0].numpy()
    core = Rig(made.path, backend).core(budget=32)
    lives = Drive(core).run([pooled(kind.value, prompt, kind) for kind in Pooling])
    for name, want in (("last", states[-1]), ("mean", states.mean(0, np.float64))):
        got = np.frombuffer(lives[name].pooled, "<f4")
        assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()


def test_a_mean_is_the_sum_over_positions_in_order():
    """The definition, from single positions: prompts [0, i) pooled by their last token."""
    prompt = tokens(37)
    lives = Drive(rig().core()).run(
        [pooled(f"p{i}", [t % 96 for t in prompt[: i + 1]], Pooling.LAST) for i in range(37)]
        + [pooled("mean", [t % 96 for t in prompt], Pooling.MEAN)]
    )
    total = np.zeros(32, np.float64)
    for i in range(37):
        total += np.frombuffer(lives[f"p{i}"].pooled, "<f4")
    assert lives["mean"].pooled == (total / 37).astype("<f4").tobytes()
    assert lives["mean"].finish is FinishReason.STOP


def test_the_last_token_uses_the_prefix_cache_and_the_mean_does_not():
    prompt = [t % 96 for t in tokens(64)]
    drive = Drive(rig().core())
    drive.run([pooled("first", prompt, Pooling.LAST)])
    drive.run([pooled("again", prompt, Pooling.LAST), pooled("mean", prompt, Pooling.MEAN)])
    assert drive.lives["again"].cached == 48
    assert drive.lives["mean"].cached == 0
    assert drive.lives["again"].pooled == drive.lives["first"].pooled


@pytest.fixture(scope="module")
def llm():
    with LLM(str(tiny_llama()), max_num_batched_tokens=64, max_num_seqs=4) as made:
        yield made


def test_embed_gives_unit_vectors_in_order(llm):
    prompts = [[3, 4, 5], [6, 7], list(range(3, 90))]
    together = llm.embed(prompts)
    for prompt, result in zip(prompts, together, strict=True):
        assert result.prompt_ids == tuple(prompt)
        assert result.usage.prompt_tokens == len(prompt)
        assert result.usage.completion_tokens == 0
        assert abs(float(np.linalg.norm(result.embedding)) - 1) < 1e-6
        assert (llm.embed(prompt)[0].embedding == result.embedding).all()
    raw = llm.embed(prompts[0], normalize=False)[0].embedding
    assert np.allclose(raw / np.linalg.norm(raw), together[0].embedding)
    mean = llm.embed(prompts, pooling="mean")
    assert not np.allclose(mean[0].embedding, together[0].embedding)
    assert llm.generate([3, 4, 5], PARAMS)[0].usage.completion_tokens == 1


def test_a_prompt_may_fill_the_context_but_not_exceed_it(llm):
    assert llm.embed([5] * LENGTH)[0].usage.prompt_tokens == LENGTH
    with pytest.raises(ContextLengthError, match="193 tokens; the context limit is 192"):
        llm.embed([5] * (LENGTH + 1))
    with pytest.raises(RequestError, match="unknown pooling 'max'; known: last, mean"):
        llm.embed([5], pooling="max")


def test_no_program_is_made_within_a_step_and_the_plan_counts_both(monkeypatch):
    core = rig("native").core(slots=4, budget=4096)
    monkeypatch.setattr(
        "headrace.compute.ops.backends.native.backend.NativeBackend.compile",
        lambda *_: pytest.fail("compiled in a step"),
    )
    lives = Drive(core).run([pooled("a", [5, 6, 7], Pooling.MEAN)])
    assert lives["a"].pooled
    programs = (core.runner._parts.program, core.runner._hidden._program)
    need = sum(p.native.bytes for p in programs)
    shape = StepShape(
        tokens=4096, logits=64, slots=4, length=LENGTH, width=32, mlp_width=64, vocab_size=VOCAB
    )
    large = replace(shape, tokens=1 << 20)  # beyond what is set aside at least
    per_token = (large.working_bytes - replace(large, tokens=1 << 19).working_bytes) / (1 << 19)
    assert need < 4096 * per_token + 8 * 64 * VOCAB


def test_broken_hidden_states_are_an_error_of_that_request_alone():
    from headrace.base.step import Row, SlotBegin, Wants
    from headrace.compute.runner.hidden import BROKEN, HiddenPass

    states = np.ones((2, 4), np.float32)
    states[0, 1] = np.nan
    made = HiddenPass(None)  # type: ignore[arg-type] - no program runs here
    for slot in (0, 1):
        made.begin(SlotBegin(slot=slot, lease=slot, request=pooled(f"r{slot}", [1], Pooling.LAST),
                             token_ids=(1,), blocks=(0,)))  # fmt: skip
    rows = [Row(slot=i, lease=i, start=0, count=1, sample=False, wants=Wants.HIDDEN) for i in (0, 1)]
    broken, fine = made.take(rows, made.pieces(rows), states)
    assert (broken.error, broken.pooled) == (BROKEN, b"")
    assert fine.pooled == states[1].tobytes()
