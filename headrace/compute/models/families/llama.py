"""Llama 2 and 3, and the many checkpoints built like them (SmolLM2, TinyLlama …)."""

from headrace.base.specs import AttentionSpec, LayerSpec
from headrace.compute.weights.modelspec import ACTIVATIONS, MAX_WIDTH, Config, Family, read_heads
from headrace.compute.weights.ropespec import read_rope


def _layer(config: Config, index: int) -> LayerSpec:
    sizes = read_heads(config)
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=sizes.head_size**-0.5,
            rope=read_rope(config, sizes.head_size),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_act", ACTIVATIONS),
    )


def _biases(config: Config) -> tuple[str, ...]:
    attention = ("q", "k", "v", "o") if config.flag("attention_bias", False) else ()
    mlp = ("gate", "up", "down") if config.flag("mlp_bias", False) else ()
    return attention + mlp


FAMILY = Family(
    architectures=("LlamaForCausalLM",),
    gguf_architecture="llama",
    layer=_layer,
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    biases=_biases,
    gguf_interleaved=True,
)
