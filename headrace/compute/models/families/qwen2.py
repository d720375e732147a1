"""Qwen2 and Qwen2.5: llama with biases on Q, K and V, and an optional window on the upper layers."""

from headrace.base.specs import AttentionSpec, LayerSpec
from headrace.compute.weights.modelspec import (
    ACTIVATIONS,
    MAX_LAYERS,
    MAX_WIDTH,
    Config,
    Family,
    layer_type,
    read_heads,
    read_window,
)
from headrace.compute.weights.ropespec import read_rope


def upper_layer_window(config: Config, index: int) -> int | None:
    """The window of a layer: on those from `max_window_layers` on, when `use_sliding_window` is set."""
    window = read_window(config)
    if not config.flag("use_sliding_window", False) or window is None:
        return None
    first = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
    kind = layer_type(config, index, lambda i: "sliding_attention" if i >= first else "full_attention")
    return window if kind == "sliding_attention" else None


def _layer(config: Config, index: int) -> LayerSpec:
    sizes = read_heads(config)
    config.value("layer_types")
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=sizes.head_size**-0.5,
            window=upper_layer_window(config, index),
            rope=read_rope(config, sizes.head_size),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_act", ACTIVATIONS),
    )


FAMILY = Family(
    architectures=("Qwen2ForCausalLM",),
    gguf_architecture="qwen2",
    layer=_layer,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
    },
    biases=lambda config: ("q", "k", "v"),
)
