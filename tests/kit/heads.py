"""Heads by construction: folders whose drafts are known, for targets that say what they are told."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.kit.scripted import scripted_checkpoint

WIDTH = 320
"""Of the scripted target, whose states are its tokens: one large value in the column of the token."""


def write_heads(folder: Path, config: dict, tensors: dict) -> Path:
    """A folder of heads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, folder / "model.safetensors")
    return folder


def steps_of(transitions: dict[int, int], times: int) -> np.ndarray:
    """The token `times` steps after each token [WIDTH]."""
    one = np.array([transitions.get(token, token) for token in range(WIDTH)])
    at = np.arange(WIDTH)
    for _ in range(times):
        at = one[at]
    return at


def table(tokens: np.ndarray, size: float = 4.0) -> np.ndarray:
    """A matrix that turns the state of token t into that of `tokens[t]`, `size` times as large."""
    out = np.zeros((WIDTH, WIDTH), np.float32)
    out[tokens, np.arange(WIDTH)] = size
    return out


def scripted_medusa(
    folder: Path,
    transitions: dict[int, int],
    heads: int = 4,
    *,
    layout: str = "blocks",
    tokens: list[int] | None = None,
    wrong=lambda depth, token: False,
) -> Path:
    """Heads that know what follows; `wrong(depth, token)` says where they say token 1 instead."""
    made: dict[str, np.ndarray] = {}
    for k in range(heads):
        after = steps_of(transitions, k + 2)
        after = np.array([1 if wrong(k, token) else after[token] for token in range(WIDTH)])
        head = table(after)
        head = head if tokens is None else head[tokens]
        block, bias = np.zeros((WIDTH, WIDTH), np.float32), np.zeros(WIDTH, np.float32)
        if layout == "blocks":
            made[f"blocks.{k}.layers.0.weight"] = block
            made[f"blocks.{k}.layers.0.bias"] = bias
            made[f"lm_heads.{k}.weight"] = head
        else:
            made |= {f"{k}.0.linear.weight": block, f"{k}.0.linear.bias": bias, f"{k}.1.weight": head}
    config = {"hidden_size": WIDTH, "vocab_size": WIDTH}
    config |= {"num_heads": heads, "num_hidden_layers": 1} if layout == "blocks" else {}
    config |= {"medusa_num_heads": heads, "medusa_num_layers": 1} if layout == "paper" else {}
    if tokens is not None:
        made["token_map"] = np.array(tokens, np.int64)
        config["truncated_vocab_size"] = len(tokens)
    return write_heads(folder, config, made)


def random_medusa(folder: Path, width: int, vocab: int, heads: int = 8, seed: int = 0) -> Path:
    """Heads that know nothing, with blocks that do something."""
    rng, made = np.random.default_rng(seed), {}
    for k in range(heads):
        made[f"blocks.{k}.layers.0.weight"] = rng.standard_normal((width, width)).astype(np.float32) * 0.2
        made[f"blocks.{k}.layers.0.bias"] = rng.standard_normal(width).astype(np.float32)
        made[f"lm_heads.{k}.weight"] = rng.standard_normal((vocab, width)).astype(np.float32)
    config = {"hidden_size": width, "vocab_size": vocab, "num_heads": heads, "num_hidden_layers": 1}
    return write_heads(folder, config, made)


EAGLE_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}


def scripted_eagle(folder: Path, transitions: dict[int, int], *, feeds: str = "feature") -> Path:
    """EAGLE-1 heads that know what follows: from the feature, or (`token`) from the embedding."""
    # A state after the last norm is sqrt(WIDTH) at its token; an embedding is 1 there.
    size = WIDTH**0.5
    token = np.eye(WIDTH, dtype=np.float32) * size
    by_feature = table(steps_of(transitions, 1), 1.0)
    nothing = np.zeros((WIDTH, WIDTH), np.float32)
    fc = (nothing, by_feature) if feeds == "feature" else (token, nothing)
    return write_heads(
        folder,
        {**EAGLE_CONFIG, "hidden_size": WIDTH, "vocab_size": WIDTH},
        {"fc.weight": np.concatenate(fc, axis=1), **_silent_layer("layers.0.", WIDTH)},
    )


def _silent_layer(at: str, inputs: int) -> dict[str, np.ndarray]:
    """A layer that adds nothing."""

    def none(*shape):
        return np.zeros(shape, np.float32)

    return {
        at + "self_attn.q_proj.weight": none(32, inputs),
        at + "self_attn.k_proj.weight": none(32, inputs),
        at + "self_attn.v_proj.weight": none(32, inputs),
        at + "self_attn.o_proj.weight": none(WIDTH, 32),
        at + "mlp.gate_proj.weight": none(32, WIDTH),
        at + "mlp.up_proj.weight": none(32, WIDTH),
        at + "mlp.down_proj.weight": none(WIDTH, 32),
        at + "post_attention_layernorm.weight": np.ones(WIDTH, np.float32),
    }


def random_eagle(folder: Path, width: int, vocab: int, *, version: int = 1, seed: int = 0) -> Path:
    """Heads that know nothing, with everything that a layer can have."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    at = "layers.0." if version == 1 else "midlayer."
    inputs = width if version == 1 else 2 * width
    made = {
        "fc.weight": draw(width, (2 if version == 1 else 3) * width),
        at + "self_attn.q_proj.weight": draw(32, inputs),
        at + "self_attn.k_proj.weight": draw(16, inputs),
        at + "self_attn.v_proj.weight": draw(16, inputs),
        at + "self_attn.o_proj.weight": draw(width, 32),
        at + "mlp.gate_proj.weight": draw(48, width),
        at + "mlp.up_proj.weight": draw(48, width),
        at + "mlp.down_proj.weight": draw(width, 48),
        at + "post_attention_layernorm.weight": 1 + draw(width),
    }
    config = {
        **EAGLE_CONFIG,
        "hidden_size": width,
        "vocab_size": vocab,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    if version == 1:
        made["fc.bias"] = draw(width)
    else:
        kept = np.sort(rng.choice(vocab, vocab // 2, replace=False))
        made |= {
            at + "input_layernorm.weight": 1 + draw(width),
            at + "hidden_norm.weight": 1 + draw(width),
            "norm.weight": 1 + draw(width),
            "lm_head.weight": draw(len(kept), width),
            "d2t": (kept - np.arange(len(kept))).astype(np.int64),
            "t2d": np.isin(np.arange(vocab), kept),
        }
        config |= {
            "draft_vocab_size": len(kept),
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        }
    return write_heads(folder, config, made)


KINDS = ("medusa", "eagle-1", "eagle-3")


def random_heads(folder: Path, width: int, vocab: int) -> dict[str, str]:
    """Settings with heads of `KINDS` that are right by chance."""
    return {
        "medusa": f"medusa={random_medusa(folder / 'm', width, vocab)}",
        "eagle-1": f"eagle={random_eagle(folder / 'e1', width, vocab)}",
        "eagle-3": f"eagle={random_eagle(folder / 'e3', width, vocab, version=3)}",
    }


def counting(end: int = 2) -> tuple[Path, dict[int, int]]:
    """A target that says 3 4 5 .. 200 and then the end, and its table."""
    transitions = {i: i + 1 if i < 200 else end for i in range(3, 201)}
    return scripted_checkpoint(transitions), transitions
