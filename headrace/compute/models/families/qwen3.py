"""Qwen3: qwen2 without its biases, with a norm on each head of Q and K, and a head size of its own."""

from headrace.base.specs import LayerSpec
from headrace.compute.models.families._layers import attention_biases, llama_layer
from headrace.compute.models.families.qwen2 import upper_layer_window
from headrace.compute.weights.modelspec import Config, Family


def _layer(config: Config, index: int) -> LayerSpec:
    return llama_layer(config, window=upper_layer_window(config, index), qk_norm=True)


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
    biases=attention_biases,
)
