"""Stop strings that end within a run of accepted drafts: all of an answer ends as without them."""

from dataclasses import replace

import pytest

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig, SpeculateConfig
from headrace.base.request import SamplingParams
from headrace.engine.build import build_core, open_model
from headrace.engine.client import LocalClient
from headrace.engine.llm import LLM
from tests.kit.scripted import scripted_checkpoint, text_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROMPT = LETTERS + "abc"
"""The text goes on with d, e, f .. and lookups know it."""
KINDS = ("ngram", "suffix", "early-exit=1")
STOPS = (("k",), ("hij",), ("mn", "lm"), ("opqrstuvwxyz", "x"), ("never",), ("ef", "g"))


def engine(method: str) -> LLM:
    path = scripted_checkpoint({ord(c): 97 + (ord(c) - 96) % 26 for c in LETTERS})
    config = EngineConfig(
        model=ModelConfig(model=str(path)),
        device=DeviceConfig(threads=1),
        kv=KVConfig(num_blocks=64),
        speculate=SpeculateConfig(method=method),
    )
    opened = replace(open_model(config, with_text=False), text=text_of())
    return LLM.over(opened, LocalClient(build_core(opened), {}))


def cases() -> list[SamplingParams]:
    """Each stop, as it is and in another form."""
    forms = ({"include_stop_str_in_output": True}, {"min_tokens": 6}, {"n": 2})
    plain = SamplingParams(temperature=0.0, seed=0, max_tokens=24, logprobs=1, ignore_eos=True)
    found = [replace(plain, stop=stop) for stop in STOPS]
    return found + [replace(one, **forms[i % len(forms)]) for i, one in enumerate(found)]


@pytest.fixture(scope="module")
def wanted():
    """The cases, with their answers without drafts."""
    with engine("off") as plain:
        found = [(params, plain.generate(PROMPT, params, progress=False)[0]) for params in cases()]
    reasons = [want.finish_reason for _, want in found]
    assert reasons.count("stop") == len(found) - 3  # two look for what never comes, one comes too early
    return found


@pytest.fixture(scope="module", params=KINDS)
def drafting(request):
    with engine(request.param) as made:
        yield request.param.partition("=")[0], made


@pytest.mark.parametrize("depth", range(1, 9))
def test_a_stop_string_within_an_accepted_run_ends_the_answer_there(wanted, drafting, depth):
    """SA-7: with drafts that are all right; `min_tokens` hold a stop back."""
    kind, llm = drafting
    for params, want in wanted:
        drafted = replace(params, speculate=f"{kind},depth={depth}")
        found = llm.generate(PROMPT, drafted, progress=False)[0]
        assert found.choices == want.choices
        assert found.usage.completion_tokens == want.usage.completion_tokens
        assert found.usage.accepted_drafts > 0
        if params.n == 1:
            parts = [output.choices[0] for output in llm.stream(PROMPT, drafted) if output.choices]
            assert "".join(part.text for part in parts) == want.text
            assert tuple(i for part in parts for i in part.token_ids) == want.token_ids
