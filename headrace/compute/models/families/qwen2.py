"""Qwen2 and Qwen2.5: llama with biases on Q, K and V, and an optional window on the upper layers."""

from headrace.base.specs import LayerSpec
from headrace.compute.models.families._layers import llama_layer
from headrace.compute.weights.modelspec import MAX_LAYERS, Config, Family, layer_type, read_window


def upper_layer_window(config: Config, index: int) -> int | None:
    """The window of a layer: on those from `max_window_layers` on, when `use_sliding_window` is set."""
    config.value("layer_types")
    window = read_window(config)
    if not config.flag("use_sliding_window", False) or window is None:
        return None
    first = config.integer("max_window_layers", 0, MAX_LAYERS, 28)
    kind = layer_type(config, index, lambda i: "sliding_attention" if i >= first else "full_attention")
    return window if kind == "sliding_attention" else None


def _layer(config: Config, index: int) -> LayerSpec:
    return llama_layer(config, window=upper_layer_window(config, index))


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
