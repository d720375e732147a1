"""Qwen3: qwen2 without its biases, with a norm on each head of Q and K, and a head size of its own."""

from headrace.base.specs import AttentionSpec, LayerSpec
from headrace.compute.models.families.qwen2 import upper_layer_window
from headrace.compute.weights.modelspec import ACTIVATIONS, MAX_WIDTH, Config, Family, read_heads
from headrace.compute.weights.ropespec import read_rope


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
            qk_norm=True,
            rope=read_rope(config, sizes.head_size),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_act", ACTIVATIONS),
    )


def _biases(config: Config) -> tuple[str, ...]:
    return ("q", "k", "v", "o") if config.flag("attention_bias", False) else ()


FAMILY = Family(
    architectures=("Qwen3ForCausalLM",),
    gguf_architecture="qwen3",
    layer=_layer,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "head_dim": 128,
    },
    biases=_biases,
)
