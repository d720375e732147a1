"""Mistral: llama with a sliding window on every layer. Its GGUF files say `llama`."""

from headrace.base.specs import AttentionSpec, LayerSpec
from headrace.compute.weights.modelspec import ACTIVATIONS, MAX_WIDTH, Config, Family, read_heads, read_window
from headrace.compute.weights.ropespec import read_rope


def _layer(config: Config, index: int) -> LayerSpec:
    sizes = read_heads(config)
    config.must_be("layer_types", None, "mistral has the same window on every layer")
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=sizes.head_size**-0.5,
            window=read_window(config),
            rope=read_rope(config, sizes.head_size),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_act", ACTIVATIONS),
    )


FAMILY = Family(
    architectures=("MistralForCausalLM",),
    gguf_architecture=None,
    layer=_layer,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    gguf_interleaved=True,
)
