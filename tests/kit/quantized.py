"""Tiny llamas in GGUF files whose matrices are quantized."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np

from tests.kit.engine import END, VOCAB

WIDTH = 256
"""Values of a block of the K schemes."""
LENGTH = 512
_HEADS, _KV_HEADS = 4, 2


@cache
def _root() -> TemporaryDirectory:
    return TemporaryDirectory(prefix="headrace-quantized-")


@cache
def quantized_llama(scheme: str, layers: int = 4, *, std: float = 0.03, seed: int = 5) -> Path:
    """A llama of random weights, `bf16`, `q8_0` or `q4_k`: a seed gives the same numbers before rounding."""
    path = Path(_root().name) / f"{scheme}-{layers}-{std}-{seed}.gguf"
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_key_length(WIDTH // _HEADS)
    writer.add_value_length(WIDTH // _HEADS)
    writer.add_rope_dimension_count(WIDTH // _HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_tokenizer_model("gpt2")
    writer.add_eos_token_id(END)

    def matrix(name: str, rows: int, size: float = std) -> None:
        values = (rng.standard_normal((rows, WIDTH)) * size).astype(np.float32)
        if scheme == "q4_k":
            data, kind = _q4_k(values), gguf.GGMLQuantizationType.Q4_K
        else:
            kind = gguf.GGMLQuantizationType[scheme.upper()]
            data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, 1 + rng.standard_normal(WIDTH).astype(np.float32) * 0.1)

    matrix("token_embd.weight", VOCAB, 0.2)
    matrix("output.weight", VOCAB, 0.2)
    norm("output_norm.weight")
    for i in range(layers):
        at = f"blk.{i}."
        norm(at + "attn_norm.weight")
        norm(at + "ffn_norm.weight")
        for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            matrix(f"{at}{name}.weight", WIDTH)
        for name in ("attn_k", "attn_v"):
            matrix(f"{at}{name}.weight", WIDTH // _HEADS * _KV_HEADS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _q4_k(values: np.ndarray) -> np.ndarray:
    """Blocks of 144 bytes: one step and one least value for 256 numbers (their parts' factors are 1)."""
    parts = values.reshape(len(values), -1, WIDTH)
    least = np.abs(parts).max(axis=2)
    d, dmin = (2 * least / 15).astype(np.float16), least.astype(np.float16)
    codes = np.round((parts + dmin[..., None]) / np.maximum(d, np.float16(1e-6))[..., None])
    codes = np.clip(codes, 0, 15).astype(np.uint8).reshape(*parts.shape[:2], 4, 2, 32)
    blocks = np.zeros((*parts.shape[:2], 144), np.uint8)
    blocks[..., 0:2], blocks[..., 2:4] = d[..., None].view(np.uint8), dmin[..., None].view(np.uint8)
    blocks[..., 4:12], blocks[..., 12:16] = 1, 17
    blocks[..., 16:] = (codes[..., 0, :] | codes[..., 1, :] << 4).reshape(*parts.shape[:2], 128)
    return np.ascontiguousarray(blocks.reshape(len(values), -1))
