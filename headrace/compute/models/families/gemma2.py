"""Gemma 2: norms around attention and MLP, soft-caps on scores and logits, every second layer windowed."""

import math
from collections.abc import Mapping
from typing import Any

from headrace.base.specs import AttentionSpec, LayerSpec
from headrace.compute.weights.modelspec import (
    ACTIVATIONS,
    MAX_WIDTH,
    Config,
    Family,
    layer_type,
    read_heads,
    read_window,
)
from headrace.compute.weights.ropespec import read_rope

LAYERS_27B = 46


def activation(config: Config) -> str:
    """`hidden_activation`, which the configuration class takes before the older `hidden_act`."""
    config.value("hidden_act")
    return config.choice("hidden_activation", ACTIVATIONS)


def attention_biases(config: Config) -> tuple[str, ...]:
    """Parts with a bias when `attention_bias` is set."""
    return ("q", "k", "v", "o") if config.flag("attention_bias", False) else ()


def _layer(config: Config, index: int) -> LayerSpec:
    sizes = read_heads(config)
    config.must_be("use_bidirectional_attention", False, "only causal attention is")
    kind = layer_type(config, index, lambda i: "full_attention" if i % 2 else "sliding_attention")
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=config.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5,
            window=read_window(config) if kind == "sliding_attention" else None,
            softcap=config.optional_number("attn_logit_softcapping", 1e-6, 1e6),
            rope=read_rope(config, sizes.head_size),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=activation(config),
        norms="sandwich",
    )


def _gguf_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # GGUF does not store the score scale; it depends on the model size (the 27B uses width over heads).
    large = config["num_hidden_layers"] == LAYERS_27B
    per_head = config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": per_head if large else config["head_dim"]}


FAMILY = Family(
    architectures=("Gemma2ForCausalLM",),
    gguf_architecture="gemma2",
    layer=_layer,
    defaults={
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "num_key_value_heads": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
    biases=attention_biases,
    embed_scale=math.sqrt,
    norm_offset=1.0,
    gguf_config=_gguf_config,
)
