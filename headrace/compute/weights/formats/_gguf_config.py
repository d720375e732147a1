"""The metadata of a GGUF file in the words of `config.json`."""

from collections.abc import Callable, Mapping
from math import log
from typing import Any

from headrace.base.errors import CheckpointError

FloatsOf = Callable[[str], "list[float] | None"]
"""The values of a small float tensor of the file, or None."""

_PLAIN = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
_ROPE = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_CHECKED_ELSEWHERE = frozenset(
    {"vocab_size", "attention.value_length", "rope.dimension_count", "rope.scale_linear"}
)
_HARMLESS = frozenset({"rope.scaling.finetuned", "tensor_data_layout", "attention.layer_norm_epsilon"})
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (True,),
    "attention.causal": (True,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def config_from_metadata(
    metadata: Mapping[str, Any], vocab_size: int, tied: bool, floats: FloatsOf
) -> dict[str, Any]:
    """A configuration from GGUF metadata.

    Raises:
        CheckpointError: per-layer values that differ, or a key of the architecture that is not understood.
    """
    prefix = metadata["general.architecture"] + "."
    own = {k[len(prefix) :]: v for k, v in metadata.items() if k.startswith(prefix)}
    own = {k: _one_value(prefix + k, v) for k, v in own.items()}
    _refuse_unknown(prefix, own)
    config: dict[str, Any] = {_PLAIN[k]: v for k, v in own.items() if k in _PLAIN}
    config["vocab_size"], config["tie_word_embeddings"] = vocab_size, tied
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    head_size = config.get("head_dim") or _head_size(config)
    if own.get("attention.value_length", head_size) != head_size:
        raise CheckpointError(
            f"{prefix}attention.value_length is {own['attention.value_length']}; keys have {head_size}: "
            f"values of another size than keys are not supported"
        )
    config["head_dim"] = head_size
    dims = own.get("rope.dimension_count", head_size)
    if isinstance(dims, int) and dims != head_size:
        config["partial_rotary_factor"] = dims / head_size
    scaling = _rope_scaling(own, floats)
    if scaling:
        config["rope_scaling"] = scaling
    return config


def _one_value(key: str, value: Any) -> Any:
    """The value of a key that may be given per layer."""
    if not isinstance(value, list):
        return value
    if not value or any(v != value[0] for v in value):
        raise CheckpointError(f"{key} differs between layers, which is not supported")
    return value[0]


def _refuse_unknown(prefix: str, own: Mapping[str, Any]) -> None:
    understood = _PLAIN.keys() | _ROPE.keys() | _CHECKED_ELSEWHERE | _HARMLESS
    for key, value in own.items():
        if key in understood or value in _NEUTRAL.get(key, ()):
            continue
        raise CheckpointError(f"the metadata key {prefix}{key} = {value!r} asks for something Headrace lacks")


def _head_size(config: Mapping[str, Any]) -> int:
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or width % heads:
        raise CheckpointError(f"a width of {width!r} cannot be divided among {heads!r} heads")
    return width // heads


def _rope_scaling(own: Mapping[str, Any], floats: FloatsOf) -> dict[str, Any]:
    scaling = {new: own[old] for old, new in _ROPE.items() if own.get(old) is not None}
    if "rope.scale_linear" in own and "rope_type" not in scaling:
        scaling |= {"rope_type": "linear", "factor": own["rope.scale_linear"]}
    kind = scaling.get("rope_type", "none")
    freqs, long, short = (floats(name) for name in ROPE_TENSORS)
    if freqs is not None:
        if kind != "none":
            raise CheckpointError(f"rope_freqs.weight together with rope scaling {kind!r} is not supported")
        return {"rope_type": "llama3", "factors": freqs}
    if long is not None and short is not None:
        scaling = {
            k: v for k, v in scaling.items() if k in ("original_max_position_embeddings", "attention_factor")
        }
        return {**scaling, "rope_type": "longrope", "long_factor": long, "short_factor": short}
    if kind == "none":
        return {}
    if kind == "yarn" and isinstance(scaling.get("attention_factor"), int | float):
        scaling["attention_factor"] *= _yarn_default(scaling.get("factor", 1.0))
    if kind == "linear":
        scaling = {
            k: scaling[k] for k in ("rope_type", "factor", "original_max_position_embeddings") if k in scaling
        }
    return scaling


def _yarn_default(factor: object) -> float:
    """GGUF's attention factor multiplies yarn's own; what is no number is refused when it is read."""
    return 0.1 * log(factor) + 1.0 if isinstance(factor, int | float) and factor > 1 else 1.0
