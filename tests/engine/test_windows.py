"""Prefix hits in models whose layers see a window, or whose angles depend on the length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.request import Request, SamplingParams
from tests.engine.test_exactness import check_schedule
from tests.kit.checkpoints import make, tokens
from tests.kit.engine import Drive, Rig

DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 1e4},
    "max_position_embeddings": 32,
}
LONG = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + i for i in range(8)],
    },
    "max_position_embeddings": 128,
}
CASES = {
    "mistral": {"sliding_window": 16},
    "gemma3": {"sliding_window": 16, "num_hidden_layers": 6},
    "llama": DYNAMIC,
    "phi3": LONG,
}


def ask(name: str, prompt, **more) -> Request:
    sampling = SamplingParams(temperature=0.7, seed=3, max_tokens=8, logprobs=1)
    return Request(request_id=name, prompt_ids=tuple(prompt), sampling=sampling, **more)


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("family", CASES)
def test_pc8_the_same_prompt_four_times_and_its_cousins(family, block_size):
    """PC-8: window 16, prompt 60, four times; then prompts that share a part, shorter and longer ones."""
    rig = Rig(make(family, **CASES[family]).path, length=128)
    core = rig.core(block_size=block_size, num_blocks=320 // block_size, budget=48)
    prompt = tokens(60, seed=2)
    prompts = [prompt] * 4 + [
        prompt[:n] + tokens(m, seed=9) for n, m in ((17, 40), (33, 2), (60, 30), (20, 5))
    ]
    for i, one in enumerate(prompts):
        request = ask(f"r{i}", one)
        life = Drive(core).run([request])[f"r{i}"]
        assert life.answer == rig.solo(request).answer, (i, len(one))
        if 1 <= i < 4:
            assert life.cached == 59 // block_size * block_size


_RIGS: dict[str, Rig] = {}


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("family", CASES)
def test_any_schedule_equals_solo_runs_in_models_with_windows_and_long_angles(family, seed):
    if family not in _RIGS:
        _RIGS[family] = Rig(make(family, **CASES[family]).path, length=128)
    check_schedule(_RIGS[family], _RIGS[family], seed)


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_slots_used_before_and_preemption_do_not_matter_to_long_angles(family):
    """Sequences of many lengths share few slots and a pool that is too small for them."""
    rig = Rig(make(family, **CASES[family]).path, length=128)
    core = rig.core(block_size=4, num_blocks=30, slots=3, budget=24)
    lengths = (60, 31, 32, 33, 10, 70, 28)
    requests = [ask(f"r{i}", tokens(n, seed=i)) for i, n in enumerate(lengths)]
    lives = Drive(core).run(requests)
    assert all(lives[r.request_id].answer == rig.solo(r).answer for r in requests)
