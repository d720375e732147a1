"""Reading rotary embeddings from a configuration, in every spelling that checkpoints use."""

from collections.abc import Mapping
from typing import Any

from headrace.base.errors import CheckpointError
from headrace.base.specs import RopeSpec
from headrace.compute.weights.modelspec import MAX_LENGTH, Config, as_number

_SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_OWN: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor", "original_max_position_embeddings"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
    "llama3": {
        "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factors",
    },
    "longrope": {
        "factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor",
        "short_mscale", "long_mscale",
    },
}  # fmt: skip
# The formulas of these kinds divide by the logarithm of that number.
_LEAST_BASE = {"yarn": 1.001}
_LEAST_ORIGINAL = {"longrope": 2}
ROPE_NAMES = {"su": "longrope", "none": "default"}


def read_rope(
    config: Config,
    head_size: int,
    *,
    layer_type: str | None = None,
    default_base: float = 10000.0,
    aliases: Mapping[str, str] = ROPE_NAMES,
) -> RopeSpec:
    """The rotary embedding of a layer type.

    Reads `rope_parameters` (flat or nested by layer type) or the older `rope_scaling`, `rope_theta` and
    `partial_rotary_factor`; `rope_type` or the older `type`.

    Raises:
        CheckpointError: an unknown kind, an unknown parameter, or a number out of range, by name.
    """
    raw = _parameters(config, layer_type)
    where = f"the rope parameters of {config.where}"
    kind = raw.get("rope_type", raw.get("type", "default"))
    kind = aliases.get(kind, kind) if isinstance(kind, str) else repr(kind)
    if kind not in _OWN:
        raise CheckpointError(
            f"rope type {kind!r:.80} in {config.where} is not supported; known: {', '.join(_OWN)}"
        )
    unknown = sorted(k for k, v in raw.items() if k not in _SHARED | _OWN[kind] and v is not None)
    if unknown:
        raise CheckpointError(f"{unknown[0]!r} in {where} means nothing to rope type {kind}")
    config_base = config.value("rope_theta")
    base = raw.get("rope_theta") or (default_base if config_base is None else config_base)
    share = raw.get("partial_rotary_factor") or config.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    # The small addition lets a factor computed as dims / head_size come back as dims.
    dims = int(head_size * as_number(share, f"partial_rotary_factor in {where}", 0.0, 1.0) + 1e-6)
    if dims < 2 or dims % 2:
        raise CheckpointError(
            f"{dims} rotated dimensions of a head of {head_size} in {where}; an even number is needed"
        )
    original, params = _read_params(kind, raw, config, dims // 2)
    return RopeSpec(
        kind=kind,
        base=as_number(base, f"rope_theta in {where}", _LEAST_BASE.get(kind, 1.0), 1e15),
        dims=dims,
        original_length=original,
        params=params,
    )


def _parameters(config: Config, layer_type: str | None) -> Mapping[str, Any]:
    old, new = config.value("rope_scaling"), config.value("rope_parameters")
    raw = old or new or {}
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"the rope parameters of {config.where} are {raw!r}; an object is needed")
    if any(isinstance(v, Mapping) for v in raw.values()):
        chosen = raw.get(layer_type or "full_attention") or {}
        if not isinstance(chosen, Mapping):
            raise CheckpointError(f"the rope parameters of {layer_type} in {config.where} are {chosen!r}")
        return chosen
    return raw


def _read_params(kind: str, raw: Mapping[str, Any], config: Config, half: int) -> tuple[int, dict[str, Any]]:
    """The length of training and the kind's numbers."""
    length = config.integer("max_position_embeddings", 1, MAX_LENGTH)
    if kind == "default":
        return length, {}
    where = f"the rope parameters of {config.where}"
    original = (
        config.value("original_max_position_embeddings")
        or raw.get("original_max_position_embeddings")
        or length
    )
    least = _LEAST_ORIGINAL.get(kind, 1)
    original = int(as_number(original, f"original_max_position_embeddings in {where}", least, MAX_LENGTH))

    def number(key: str, low: float, high: float, default: float | None = None) -> float:
        found = raw.get(key)
        return as_number(default if found is None else found, f"{key} in {where}", low, high)

    if kind in ("linear", "dynamic"):
        # Dynamic scaling measures growth against max_position_embeddings, whatever the original length.
        return (length if kind == "dynamic" else original), {"factor": number("factor", 1.0, 1e6)}
    if kind == "llama3":
        return original, _llama3(raw, half, where, number)
    params: dict[str, Any] = {"factor": number("factor", 1.0, 1e6, max(1.0, length / original))}
    if raw.get("attention_factor") is not None:
        params["attention_factor"] = number("attention_factor", 1e-3, 1e3)
    return original, params | (_yarn(raw, number) if kind == "yarn" else _longrope(raw, half, where))


def _yarn(raw: Mapping[str, Any], number: Any) -> dict[str, Any]:
    own = {key: number(key, 0.0, 1e3) for key in ("mscale", "mscale_all_dim") if raw.get(key)}
    return own | {
        "beta_fast": number("beta_fast", 1e-3, 1e6, 32.0),
        "beta_slow": number("beta_slow", 1e-3, 1e6, 1.0),
        "truncate": bool(raw.get("truncate", True)),
    }


def _longrope(raw: Mapping[str, Any], half: int, where: str) -> dict[str, Any]:
    for key in ("short_mscale", "long_mscale"):
        if raw.get(key) is not None:
            raise CheckpointError(f"{key} in {where} is not supported")
    return {key: _list(raw.get(key), half, f"{key} in {where}") for key in ("short_factor", "long_factor")}


def _llama3(raw: Mapping[str, Any], half: int, where: str, number: Any) -> dict[str, Any]:
    if raw.get("factors") is not None:
        return {"factors": _list(raw["factors"], half, f"the frequency factors in {where}")}
    low, high = number("low_freq_factor", 1e-3, 1e3), number("high_freq_factor", 1e-3, 1e3)
    if not low < high:
        raise CheckpointError(f"low_freq_factor {low:g} in {where} must be below high_freq_factor {high:g}")
    return {"factor": number("factor", 1.0, 1e6), "low_freq_factor": low, "high_freq_factor": high}


def _list(found: Any, half: int, what: str) -> tuple[float, ...]:
    if not isinstance(found, list | tuple) or len(found) != half:
        raise CheckpointError(f"{what} must hold {half} numbers")
    return tuple(as_number(v, what, 1e-6, 1e6) for v in found)
