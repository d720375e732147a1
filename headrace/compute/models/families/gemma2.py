"""Gemma 2: norms around attention and MLP, soft-caps on scores and logits, every second layer windowed."""

import math

from headrace.base.specs import LayerSpec
from headrace.compute.models.families._layers import attention_biases, gemma_gguf_config, gemma_layer
from headrace.compute.weights.modelspec import Config, Family, layer_type, read_heads
from headrace.compute.weights.ropespec import read_rope

LAYERS_27B = 46


def _layer(config: Config, index: int) -> LayerSpec:
    kind = layer_type(config, index, lambda i: "full_attention" if i % 2 else "sliding_attention")
    rope = read_rope(config, read_heads(config).head_size)
    return gemma_layer(config, rope, is_windowed=kind == "sliding_attention")


FAMILY = Family(
    architectures=("Gemma2ForCausalLM",),
    gguf_architecture="gemma2",
    layer=_layer,
    defaults={
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "num_key_value_heads": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
    biases=attention_biases,
    embed_scale=math.sqrt,
    norm_offset=1.0,
    gguf_config=lambda config: gemma_gguf_config(config, LAYERS_27B),
)
