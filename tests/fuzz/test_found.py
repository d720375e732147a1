"""What fuzzing found, each case made small."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CheckpointError, RequestError
from headrace.base.grammar import Grammar
from headrace.base.specs import TokenizerSource
from headrace.compute.models.families._layers import gemma_gguf_config
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.compute.weights.formats._gguf_config import config_from_metadata
from headrace.compute.weights.formats._safetensors_file import read_file
from headrace.compute.weights.formats.safetensors import _shard
from headrace.compute.weights.modelspec import Config, as_number
from headrace.host.text.chat import CHATML, ChatTemplate
from headrace.host.text.tokenizer import load_tokenizer
from headrace.host.text.vocab import directory
from headrace.host.text.vocab.library_faults import refused
from tests.fuzz.bodies import Target
from tests.kit.gguf_files import pair, raw_file, text
from tests.kit.vocabs import byte_library


def ask(path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    status, _, content = asyncio.run(Target().ask("POST", path, body, headers))
    return status, json.loads(content)


@pytest.mark.parametrize("make", [Grammar.regex, Grammar.lark, lambda text: Grammar.choice([text])])
def test_half_a_surrogate_pair_in_a_grammar_is_refused(make: Any) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        make("a\ud800")


@pytest.mark.parametrize("length", ["²", "9" * 5000, "-1", "1e3", "", "٣"])
def test_odd_content_lengths_are_no_server_errors(length: str) -> None:
    status, _ = ask("/v1/completions", b'{"prompt": "a"}', {"content-length": length})
    assert status == (413 if length == "9" * 5000 else 200)


def test_errors_quote_little_of_a_body() -> None:
    turns = [{"role": "user", "content": [{"type": ["x" * 20_000]}]}]
    status, answer = ask("/v1/messages", json.dumps({"max_tokens": 1, "messages": turns}).encode())
    assert status == 400
    assert len(answer["error"]["message"]) < 1000


def test_a_gguf_file_without_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(raw_file([pair("general.architecture", 8, text("llama"))]))
    with pytest.raises(CheckpointError, match="lacks the matrix"):
        open_checkpoint(tmp_path / "a.gguf")


@pytest.mark.parametrize("dtype", [["F32"], {"F32": 1}, 5, None, "Q4"])
def test_types_of_tensors_that_are_no_names_are_refused(tmp_path: Path, dtype: Any) -> None:
    head = json.dumps({"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    with pytest.raises(CheckpointError, match="unknown type"):
        read_file(file)


def test_errors_quote_little_of_a_file() -> None:
    with pytest.raises(CheckpointError) as caught:
        Config({"hidden_size": ["x" * 10_000]}, "config.json").integer("hidden_size", 1, 9)
    assert "hidden_size in config.json" in caught.value.message
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize("source", ["{{ raise_exception('a' * 99999) }}", "{{ a[" + "{% if 1 %}" * 999])
def test_errors_quote_little_of_a_template(source: str) -> None:
    with pytest.raises(RequestError, match="chat template") as caught:
        ChatTemplate(source, {}).render([{"role": "user", "content": "a"}])
    assert len(caught.value.message) < 1200


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf")])
def test_numbers_that_no_float_holds_are_refused(number: float) -> None:
    with pytest.raises(CheckpointError, match="a number from 0 to 1 is needed"):
        as_number(number, "share", 0.0, 1.0)


@pytest.mark.parametrize("stem", ["a" * 5000, "🙂" * 100])
def test_a_shard_with_a_name_too_long_for_a_file_is_refused(tmp_path: Path, stem: str) -> None:
    with pytest.raises(CheckpointError, match="names the shard"):
        _shard(tmp_path, stem + ".safetensors")


@pytest.mark.parametrize("gone", ["hidden_size", "num_attention_heads", "num_hidden_layers"])
def test_gemma_metadata_without_sizes_reaches_the_check_of_sizes(gone: str) -> None:
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 62, "head_dim": 8}
    assert gemma_gguf_config(config, 62) == {"query_pre_attn_scalar": 16}
    del config[gone]
    assert gemma_gguf_config(config, 62) == {"query_pre_attn_scalar": 8}


@pytest.mark.parametrize("calls", [5, 0.5, True, "f", {"a": 1}])
def test_tool_calls_that_are_no_list_are_refused(calls: Any) -> None:
    with pytest.raises(RequestError, match="must be a list"):
        ChatTemplate(CHATML, {}).render([{"role": "assistant", "content": "", "tool_calls": calls}])


@pytest.mark.parametrize("key", ["rope.scaling.attn_factor", "rope.scaling.factor"])
def test_yarn_numbers_that_are_texts_reach_the_check_of_numbers(key: str) -> None:
    metadata = {"general.architecture": "llama", "llama.embedding_length": 8, "llama.attention.head_count": 1}
    metadata |= {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.attn_factor": 1.0,
        f"llama.{key}": "much",
    }
    config = config_from_metadata(metadata, 5, True, lambda name: None)
    assert "much" in config["rope_scaling"].values()


def test_a_prefix_longer_than_the_tokens_it_stands_before_is_refused(tmp_path: Path) -> None:
    """The tokenizers library panics, which is no Exception."""
    described = json.loads(byte_library().to_str())
    described["model"]["continuing_subword_prefix"] = "longer than any token"
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer that .* reads: range"):
        directory.read(tmp_path)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_whoever_ends_a_process_that_loads_is_heeded(ending: type[BaseException]) -> None:
    with pytest.raises(ending), refused("a file"):
        raise ending


def test_normalization_rules_that_point_outside_themselves_are_refused_when_a_text_meets_them() -> None:
    """The tokenizers library takes them, and panics over texts."""
    metadata = {
        "model": "t5",
        "tokens": ["<unk>", "a"],
        "scores": [0.0, -1.0],
        "unknown_token_id": 0,
        "precompiled_charsmap": [8, 0, 0, 0, *[0xFF] * 8],
    }
    tokenizer = load_tokenizer(TokenizerSource(gguf={f"tokenizer.ggml.{k}": v for k, v in metadata.items()}))
    with pytest.raises(CheckpointError, match="fails on a text: index out of bounds"):
        tokenizer.encode("a")
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("a\ud800")
