"""Phi-3 and Phi-4 mini: llama with fused projections, longrope and an optional window."""

from headrace.base.specs import LayerSpec
from headrace.compute.models.families._layers import llama_layer
from headrace.compute.weights.modelspec import Config, Family, read_window

# Early checkpoints call longrope "su" or "yarn".
_ROPE_NAMES = {"su": "longrope", "yarn": "longrope", "none": "default"}


def _layer(config: Config, index: int) -> LayerSpec:
    return llama_layer(config, window=read_window(config), rope_names=_ROPE_NAMES)


FAMILY = Family(
    architectures=("Phi3ForCausalLM",),
    gguf_architecture="phi3",
    layer=_layer,
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    fused=True,
)
