"""Llama 2 and 3, and the many checkpoints built like them (SmolLM2, TinyLlama …)."""

from headrace.compute.models.families._layers import attention_biases, llama_layer
from headrace.compute.weights.modelspec import Config, Family


def _biases(config: Config) -> tuple[str, ...]:
    return attention_biases(config) + (("gate", "up", "down") if config.flag("mlp_bias", False) else ())


FAMILY = Family(
    architectures=("LlamaForCausalLM",),
    gguf_architecture="llama",
    layer=lambda config, index: llama_layer(config),
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    biases=_biases,
    gguf_interleaved=True,
)
