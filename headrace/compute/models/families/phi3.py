"""Phi-3 and Phi-4 mini: llama with fused projections, longrope and an optional window."""

from headrace.base.specs import AttentionSpec, LayerSpec
from headrace.compute.weights.modelspec import ACTIVATIONS, MAX_WIDTH, Config, Family, read_heads, read_window
from headrace.compute.weights.ropespec import read_rope

# Early checkpoints call longrope "su" or "yarn".
_ROPE_NAMES = {"su": "longrope", "yarn": "longrope", "none": "default"}


def _layer(config: Config, index: int) -> LayerSpec:
    sizes = read_heads(config)
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=sizes.head_size**-0.5,
            window=read_window(config),
            rope=read_rope(config, sizes.head_size, aliases=_ROPE_NAMES),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_act", ACTIVATIONS),
    )


FAMILY = Family(
    architectures=("Phi3ForCausalLM",),
    gguf_architecture="phi3",
    layer=_layer,
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    fused=True,
)
