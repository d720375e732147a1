"""GGUF files: tiny models written the way llama.cpp's converter writes them, and raw headers."""

import struct
from pathlib import Path

import gguf
import numpy as np

INTERLEAVED = {"llama", "mistral"}
NAMES: dict[str, str] = {"mistral": "llama"}


def write_model(
    made, path: Path, quantize: gguf.GGMLQuantizationType | None = None, vocabulary: dict | None = None
) -> Path:
    """A GGUF file of a made checkpoint (see `checkpoints.make`), its matrices quantized if asked for.

    `vocabulary` is metadata of a tokenizer that works (see `vocabs`), instead of one that is only counted.
    """
    config = made.model.config
    family: str = config.model_type.removesuffix("_text")
    architecture: str = NAMES.get(family, family)
    writer = gguf.GGUFWriter(path, architecture)
    _metadata(writer, config)
    _vocabulary(writer, config, vocabulary)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), config.num_hidden_layers)
    for name, parameter in made.model.state_dict().items():
        values = parameter.numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if family.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if family in INTERLEAVED:
            values = _interleave(name, values, config)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, name
        if quantize is not None and values.ndim == 2:
            writer.add_tensor(stored, gguf.quants.quantize(values, quantize), raw_dtype=quantize)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(full["rope_theta"])
    if getattr(config, "sliding_window", None) and getattr(config, "model_type", "") != "qwen2":
        writer.add_sliding_window(config.sliding_window)
    for key, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
    ):
        if getattr(config, key, None):
            add(getattr(config, key))
    _rope(writer, full, head_size, config)


def _vocabulary(writer, config, vocabulary):
    if vocabulary is None:
        writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
        writer.add_tokenizer_model("gpt2")
        writer.add_eos_token_id(config.eos_token_id)
        return
    for key, value in vocabulary.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)


def _rope(writer, rope, head_size, config):
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_size))
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def _llama3_factors(rope, head_size):
    """As llama.cpp's converter computes them: what each frequency is divided by."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, factors = rope["original_max_position_embeddings"], []
    for i in range(0, head_size, 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (i / head_size)
        if wave < original / high:
            factors.append(1.0)
        elif wave > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _interleave(name, values, config):
    """The converter's permutation of Q and K: halves of a head become neighbouring pairs."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, n in heads.items():
        if f".{part}." in name:
            return (
                values.reshape(n, 2, values.shape[0] // n // 2, *values.shape[1:])
                .swapaxes(1, 2)
                .reshape(values.shape)
            )
    return values


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims, kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def raw_file(pairs=(), tensors=(), data=b"", *, version=3, counts=None, magic=b"GGUF") -> bytes:
    """The bytes of a file, true or not; `counts` overrides (tensors, pairs) of the header."""
    num_tensors, num_pairs = counts or (len(tensors), len(pairs))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_pairs) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data
