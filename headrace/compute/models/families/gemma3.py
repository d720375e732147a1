"""Gemma 3 (text): gemma2 with norms on Q and K, five windowed layers to one full, and two RoPE bases."""

import math
from collections.abc import Mapping
from typing import Any

from headrace.base.specs import AttentionSpec, LayerSpec, RopeSpec
from headrace.compute.models.families.gemma2 import activation, attention_biases
from headrace.compute.weights.modelspec import (
    MAX_LAYERS,
    MAX_WIDTH,
    Config,
    Family,
    layer_type,
    read_heads,
    read_window,
)
from headrace.compute.weights.ropespec import read_rope

LAYERS_27B = 62


def _layer(config: Config, index: int) -> LayerSpec:
    sizes = read_heads(config)
    config.must_be("use_bidirectional_attention", False, "only causal attention is")
    underscored = config.integer("_sliding_window_pattern", 1, MAX_LAYERS, 6)
    every = config.integer("sliding_window_pattern", 1, MAX_LAYERS, underscored)
    kind = layer_type(config, index, lambda i: "sliding_attention" if (i + 1) % every else "full_attention")
    sliding = kind == "sliding_attention"
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=config.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5,
            window=read_window(config) if sliding else None,
            softcap=config.optional_number("attn_logit_softcapping", 1e-6, 1e6),
            qk_norm=True,
            rope=_rope(config, sizes.head_size, kind),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=activation(config),
        norms="sandwich",
    )


def _rope(config: Config, head_size: int, kind: str) -> RopeSpec:
    """Windowed layers have a base of their own and, in the older layout, no scaling."""
    local_base = config.number("rope_local_base_freq", 1.0, 1e15, 10000.0)
    parameters = config.value("rope_parameters")
    nested = isinstance(parameters, Mapping) and any(isinstance(v, Mapping) for v in parameters.values())
    if kind == "full_attention":
        return read_rope(config, head_size, layer_type=kind, default_base=1e6)
    inner = (parameters.get(kind) or {}) if nested and isinstance(parameters, Mapping) else {}
    local = Config(
        {
            "rope_theta": local_base,
            "rope_parameters": inner,
            "max_position_embeddings": config.value("max_position_embeddings"),
        },
        f"{config.where} (windowed layers)",
    )
    return read_rope(local, head_size, layer_type=kind)


def _gguf_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    large = config["num_hidden_layers"] == LAYERS_27B
    per_head = config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": per_head if large else config["head_dim"]}


FAMILY = Family(
    architectures=("Gemma3ForCausalLM",),
    gguf_architecture="gemma3",
    layer=_layer,
    defaults={
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "context_is_stretched": True,
    },
    biases=attention_biases,
    embed_scale=math.sqrt,
    norm_offset=1.0,
    gguf_config=_gguf_config,
)
