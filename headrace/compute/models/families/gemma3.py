"""Gemma 3 (text): gemma2 with norms on Q and K, five windowed layers to one full, and two RoPE bases."""

import math
from collections.abc import Mapping

from headrace.base.specs import LayerSpec, RopeSpec
from headrace.compute.models.families._layers import attention_biases, gemma_gguf_config, gemma_layer
from headrace.compute.weights.modelspec import MAX_LAYERS, Config, Family, layer_type, read_heads
from headrace.compute.weights.ropespec import read_rope

LAYERS_27B = 62


def _layer(config: Config, index: int) -> LayerSpec:
    underscored = config.integer("_sliding_window_pattern", 1, MAX_LAYERS, 6)
    every = config.integer("sliding_window_pattern", 1, MAX_LAYERS, underscored)
    kind = layer_type(config, index, lambda i: "sliding_attention" if (i + 1) % every else "full_attention")
    rope = _rope(config, read_heads(config).head_size, kind)
    return gemma_layer(config, rope, is_windowed=kind == "sliding_attention", qk_norm=True)


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
    gguf_config=lambda config: gemma_gguf_config(config, LAYERS_27B),
)
