"""Which draft models there may be: their tokens, their memory, their angles."""

import json
from dataclasses import replace

import pytest
from safetensors.numpy import load_file

from headrace.base.config import EngineConfig, ModelConfig, SpeculateConfig
from headrace.base.errors import CheckpointError, ConfigError, NotFoundError
from headrace.base.specs import TokenizerSource
from headrace.engine.build import build_core, open_model
from headrace.engine.drafts.draft_model import open_draft
from headrace.engine.drafts.tokens import check_same_tokens, first_difference
from headrace.engine.resolve import resolve
from headrace.engine.sizing import WORKING_BYTES
from tests.kit.engine import tiny_llama, write_checkpoint
from tests.kit.vocabs import byte_metadata, byte_tokenizer
from tests.unit.test_resolve import DEVICE, MODEL, config

SAME = byte_metadata()
TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
SIZE = len(SAME[TOKENS])


def padded(count: int) -> dict:
    """As converters fill a vocabulary up to the rows of the head."""
    names = [f"[PAD{SIZE + i}]" for i in range(count)]
    return SAME | {TOKENS: SAME[TOKENS] + names, TYPES: SAME[TYPES] + [5] * count}


def permuted(one: int, other: int) -> dict:
    tokens = list(SAME[TOKENS])
    tokens[one], tokens[other] = tokens[other], tokens[one]
    return SAME | {TOKENS: tokens}


def test_the_same_tokens_and_padded_ones_are_taken():
    """SP-9: same, and padded, on either side."""
    for data, target in ((SAME, SAME), (padded(9), SAME), (SAME, padded(9)), (padded(3), padded(9))):
        tokenizer = byte_tokenizer(tokens=target[TOKENS], token_type=target[TYPES])
        check_same_tokens(tokenizer, TokenizerSource(gguf=data), (SIZE, SIZE), "small")


def test_tokens_of_a_larger_vocabulary_are_taken_where_the_other_has_padding():
    """SP-9: an added token where the other model has a padding row."""
    data = padded(4)
    more = data | {TOKENS: [*data[TOKENS][:-1], "<|more|>"], TYPES: [*data[TYPES][:-1], 3]}
    tokenizer = byte_tokenizer(tokens=data[TOKENS], token_type=data[TYPES])
    check_same_tokens(tokenizer, TokenizerSource(gguf=more), (SIZE + 4, SIZE + 4), "small")


def test_other_tokens_are_refused_by_the_first_that_differs():
    """SP-9: as many tokens, in another order."""
    other = TokenizerSource(gguf=permuted(70, 97))
    with pytest.raises(
        ConfigError, match=r"'small' has other tokens .* id 70 is b'.' there and b'.' here"
    ) as caught:
        check_same_tokens(byte_tokenizer(), other, (SIZE, SIZE), "small")
    assert caught.value.param == "speculate.method"


def test_the_first_difference_is_found():
    assert first_difference(byte_tokenizer(), byte_tokenizer()) is None
    assert first_difference(byte_tokenizer(), byte_tokenizer(tokens=permuted(80, 90)[TOKENS])) == 80


def test_models_without_a_tokenizer_are_compared_by_size():
    nothing = TokenizerSource()
    check_same_tokens(None, nothing, (96, 96), "small")
    with pytest.raises(ConfigError, match="neither has a tokenizer, and their heads differ in size"):
        check_same_tokens(None, nothing, (96, 95), "small")
    with pytest.raises(ConfigError, match="it has no tokenizer"):
        check_same_tokens(byte_tokenizer(), nothing, (SIZE, SIZE), "small")
    with pytest.raises(ConfigError, match="the model has no tokenizer"):
        check_same_tokens(None, TokenizerSource(gguf=SAME), (SIZE, SIZE), "small")


def with_draft(method: str) -> EngineConfig:
    model = ModelConfig(model=str(tiny_llama()))
    return replace(config(), model=model, speculate=SpeculateConfig(method=method))


def variant(name: str, **changes) -> str:
    """A tiny llama with another configuration."""
    source = tiny_llama()
    data = json.loads((source / "config.json").read_text()) | changes
    return str(write_checkpoint(f"choice-{name}", data, load_file(source / "model.safetensors")))


def test_a_draft_model_that_is_not_there_is_named():
    with pytest.raises((NotFoundError, CheckpointError), match="no-such-model"):
        open_model(with_draft("draft=no-such-model:1b"))


def test_angles_that_depend_on_the_prompt_are_refused():
    path = variant("dynamic", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(ConfigError, match="rotary embeddings of kind dynamic") as caught:
        open_draft(with_draft(f"draft={path}"))
    assert caught.value.param == "speculate.method"
    assert open_draft(with_draft("auto")) is None


def test_blocks_weights_and_steps_of_a_draft_model_are_planned():
    draft = replace(
        MODEL, layers=2, stored_bytes=50 << 20, parameters=50_000_000, name="small", max_length=64
    )
    pair, asked = replace(MODEL, draft=draft), config(speculate={"method": "draft=small"})
    plain, found = resolve(config(), MODEL, DEVICE), resolve(asked, pair, DEVICE)
    both = MODEL.layers + 2
    assert found.kv_bytes // found.num_blocks == plain.geometry.block_bytes * both // MODEL.layers
    assert found.max_model_len == plain.max_model_len
    notes = {s.name: (s.value, s.reason) for s in found.settings}
    assert notes["draft model"] == ("small", draft.description)
    for memory, fits in ((0, False), (40 << 20, False), (400 << 20, True)):
        device = replace(DEVICE, memory_bytes=MODEL.stored_bytes + WORKING_BYTES + memory)
        if fits:
            assert resolve(asked, pair, device).num_blocks > 0
            continue
        with pytest.raises(ConfigError, match=r"its draft model .* or speculate without a draft model"):
            resolve(asked, pair, device)


def test_a_draft_model_that_is_not_smaller_is_warned_of():
    asked = config(speculate={"method": "draft=small,depth=3"})
    for parameters, warned in ((MODEL.parameters, True), (MODEL.parameters - 1, False)):
        draft = replace(MODEL, parameters=parameters, name="small")
        notes = {s.name: s.reason for s in resolve(asked, replace(MODEL, draft=draft), DEVICE).settings}
        assert ("warning: not smaller than the model" in notes["draft model"]) == warned


def test_an_engine_starts_with_a_draft_model_and_refuses_other_tokens():
    opened = open_model(with_draft(f"draft={tiny_llama(seed=6)}"))
    assert opened.draft is not None
    assert opened.resolved.model.draft is not None
    core = build_core(opened)
    try:
        assert core.runner._parts.drafting is not None
        assert len(core.runner._planes) == 3
    finally:
        core.close()
    with pytest.raises(ConfigError, match="heads differ in size"):
        build_core(open_model(with_draft(f"draft={narrow()}")))


def narrow() -> str:
    source = tiny_llama()
    tensors = load_file(source / "model.safetensors")
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[key] = tensors[key][:90]
    data = json.loads((source / "config.json").read_text()) | {"vocab_size": 90}
    return str(write_checkpoint("choice-narrow", data, tensors))
