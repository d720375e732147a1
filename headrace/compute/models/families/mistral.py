"""Mistral: llama with a sliding window on every layer. Its GGUF files say `llama`."""

from headrace.base.specs import LayerSpec
from headrace.compute.models.families._layers import llama_layer
from headrace.compute.weights.modelspec import Config, Family, read_window


def _layer(config: Config, index: int) -> LayerSpec:
    config.must_be("layer_types", None, "mistral has the same window on every layer")
    return llama_layer(config, window=read_window(config))


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
