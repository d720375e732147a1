"""The two kinds of layer that the families vary: llama's and gemma's."""

from collections.abc import Mapping
from typing import Any

from headrace.base.specs import AttentionSpec, LayerSpec, RopeSpec
from headrace.compute.weights.modelspec import ACTIVATIONS, MAX_WIDTH, Config, read_heads, read_window
from headrace.compute.weights.ropespec import ROPE_NAMES, read_rope


def llama_layer(
    config: Config,
    *,
    window: int | None = None,
    qk_norm: bool = False,
    rope_names: Mapping[str, str] = ROPE_NAMES,
) -> LayerSpec:
    """A layer with one norm before attention and one before the MLP.

    Args:
        config: the configuration being read.
        window: tokens a query sees; None: all.
        qk_norm: a norm on each head of Q and K.
        rope_names: other names of RoPE kinds.
    """
    sizes = read_heads(config)
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=sizes.head_size**-0.5,
            window=window,
            qk_norm=qk_norm,
            rope=read_rope(config, sizes.head_size, aliases=rope_names),
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_act", ACTIVATIONS),
    )


def gemma_layer(config: Config, rope: RopeSpec, *, is_windowed: bool, qk_norm: bool = False) -> LayerSpec:
    """A layer with norms before and after attention and MLP, a scale of its own and capped scores."""
    sizes = read_heads(config)
    config.must_be("use_bidirectional_attention", False, "only causal attention is")
    config.value("hidden_act")  # an older name, which the configuration class does not look at
    return LayerSpec(
        attention=AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            scale=config.number("query_pre_attn_scalar", 1e-3, 1e6) ** -0.5,
            window=read_window(config) if is_windowed else None,
            softcap=config.optional_number("attn_logit_softcapping", 1e-6, 1e6),
            qk_norm=qk_norm,
            rope=rope,
        ),
        mlp_width=config.integer("intermediate_size", 1, MAX_WIDTH),
        activation=config.choice("hidden_activation", ACTIVATIONS),
        norms="sandwich",
    )


def gemma_gguf_config(config: Mapping[str, Any], layers_of_largest: int) -> Mapping[str, Any]:
    """The score scale, which GGUF files leave out: the largest model of a family uses width over heads.

    Numbers that are missing or impossible are refused when they are read, not here.
    """
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    is_largest = config.get("num_hidden_layers") == layers_of_largest
    if is_largest and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        return {"query_pre_attn_scalar": width // heads}
    return {"query_pre_attn_scalar": config.get("head_dim")}


def attention_biases(config: Config) -> tuple[str, ...]:
    """Parts with a bias when `attention_bias` is set."""
    return ("q", "k", "v", "o") if config.flag("attention_bias", False) else ()
