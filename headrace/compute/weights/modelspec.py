"""How a model family reads a configuration: typed, bounded, and refusing by name what it does not understand.

A GGUF file's metadata is first put into the words of `config.json`, so a family is described once for both.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.base.errors import CheckpointError
from headrace.base.registry import Registry
from headrace.base.specs import LayerSpec, ModelSpec

T = TypeVar("T")

MAX_LAYERS, MAX_WIDTH, MAX_VOCAB, MAX_HEAD_SIZE, MAX_LENGTH = 1024, 1 << 20, 1 << 24, 1024, 1 << 28

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}

_ALWAYS_REFUSED = {
    "quantization_config": "weights quantized in this way are not supported; "
    "use an unquantized checkpoint or a GGUF file",
    "compression_config": "compressed weights are not supported; "
    "use an unquantized checkpoint or a GGUF file",
    "auto_map": "it names Python code of the checkpoint, which is never run; "
    "remove the entry if the architecture is the standard one",
}
_HARMLESS = frozenset(
    {
        "attention_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_implementation",
        "_attn_implementation_autoset",
        "attention_probs_dropout_prob",
        "hidden_dropout",
        "cache_implementation",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "max_window_layers",
        "pretraining_tp",
        "use_cache",
        "max_sequence_length",
        "original_rope_scaling",
        "_attn_implementation",
    }
)
_MEANINGFUL = re.compile(
    r"expert|moe|sink|multiplier|scal|quant|lora|softcap|clip|norm|rope|rotary|window|bias|cross|attn|attention|residual|"
    r"altup|laurel|mrope|sparse|parallel|adapter|mixer|ssm|conv|nope|temperature|activation|layer_types|query"
)
_REQUIRED: Any = object()


class Config:
    """A configuration being read; remembers which keys were read, so that the rest can be judged.

    Args:
        values: the configuration, in the words of Hugging Face's `config.json`.
        where: what to call it in messages.
        defaults: values of keys that the file leaves out (a null in the file is not left out).
    """

    def __init__(
        self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.where = where
        self._values = {**(defaults or {}), **values}
        self._read: set[str] = set()

    def value(self, key: str, default: Any = None) -> Any:
        """The raw value of `key`, or the default when there is none or it is null."""
        self._read.add(key)
        found = self._values.get(key)
        return default if found is None else found

    def integer(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> int:
        """A whole number in [low, high].

        Raises:
            CheckpointError: missing, no whole number, or out of range.
        """
        found = self._required(key, default)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise CheckpointError(
                f"{key} in {self.where} is {found!r}; a whole number from {low} to {high} is needed"
            )
        return found

    def number(self, key: str, low: float, high: float, default: Any = _REQUIRED) -> float:
        """A finite number in [low, high]; raises like `integer`."""
        return as_number(self._required(key, default), f"{key} in {self.where}", low, high)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """A number as above, or None when the key is absent."""
        return None if self.value(key) is None else self.number(key, low, high)

    def flag(self, key: str, default: bool) -> bool:
        """A true-or-false value; raises like `integer`."""
        found = self._required(key, default)
        if not isinstance(found, bool):
            raise CheckpointError(f"{key} in {self.where} is {found!r}; true or false is needed")
        return found

    def choice(self, key: str, choices: Mapping[str, T], default: Any = _REQUIRED) -> T:
        """What the value stands for; raises, naming the choices, when it is none of them."""
        found = self._required(key, default)
        if not isinstance(found, str) or found not in choices:
            raise CheckpointError(
                f"{key} in {self.where} is {found!r}, which Headrace lacks; known: {', '.join(choices)}"
            )
        return choices[found]

    def must_be(self, key: str, wanted: Any, reason: str) -> None:
        """Refuse any value but `wanted` (or none)."""
        found = self.value(key, wanted)
        if found != wanted:
            raise CheckpointError(f"{key} = {found!r} in {self.where} is not supported: {reason}")

    def refuse_unread(self) -> None:
        """Refuse keys that nobody read and that look as if they changed the model.

        Raises:
            CheckpointError: names the first such key and its value.
        """
        for key, reason in _ALWAYS_REFUSED.items():
            if self._values.get(key):
                raise CheckpointError(f"{self.where} has {key}: {reason}")
        for key in sorted(set(self._values) - self._read - _HARMLESS):
            if _MEANINGFUL.search(key) and not _is_neutral(self._values[key]):
                raise CheckpointError(
                    f"{key} = {self._values[key]!r} in {self.where} asks for something "
                    f"that this model family of Headrace lacks"
                )

    def _required(self, key: str, default: Any) -> Any:
        found = self.value(key, None if default is _REQUIRED else default)
        if found is None:
            raise CheckpointError(f"{self.where} lacks {key}")
        return found


def as_number(found: Any, what: str, low: float, high: float) -> float:
    """`found` as a finite float in [low, high].

    Raises:
        CheckpointError: it is none; the message begins with `what`.
    """
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise CheckpointError(f"{what} is {found!r}; a number is needed")
    if not low <= found <= high:  # NaN is in no range; a large int would not fit math.isfinite
        raise CheckpointError(f"{what} is {found!r}; a number from {low:g} to {high:g} is needed")
    return float(found)


def _is_neutral(value: Any) -> bool:
    return value is None or value in (False, 0, 1, "", "default", "eager", "sdpa") or value in ([], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family as data.

    Args:
        architectures: names in `config.json`.
        gguf_architecture: `general.architecture` in GGUF files.
        layer: the layer of an index, from a configuration.
        defaults: values that the family's configuration class has when the file leaves them out.
        biases: parts (`q`, `gate` …) that have a bias under a configuration.
        embed_scale: the factor on embeddings for a width.
        fused: Q, K and V lie in one tensor, gate and up in another.
        norm_offset: what is added to norm weights of Hugging Face checkpoints (GGUF files have it folded in).
        gguf_interleaved: GGUF files hold the rows of Q and K as neighbouring pairs.
        gguf_config: more of the configuration, derived from what a GGUF file gives.
    """

    architectures: tuple[str, ...]
    gguf_architecture: str | None
    layer: Callable[[Config, int], LayerSpec]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    biases: Callable[[Config], tuple[str, ...]] = lambda config: ()
    embed_scale: Callable[[int], float] = lambda width: 1.0
    fused: bool = False
    norm_offset: float = 0.0
    gguf_interleaved: bool = False
    gguf_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {}


FAMILIES: Registry[Family] = Registry("model family", "headrace.compute.models.families", "FAMILY")


def read_spec(name: str, family: Family, config: Config) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model and the parts that have biases.

    Raises:
        CheckpointError: the configuration is incomplete, impossible, or asks for something Headrace lacks.
    """
    config.must_be("is_encoder_decoder", False, "only decoders are")
    num_layers = config.integer("num_hidden_layers", 1, MAX_LAYERS)
    width = config.integer("hidden_size", 1, MAX_WIDTH)
    layers = tuple(family.layer(config, i) for i in range(num_layers))
    spec = ModelSpec(
        family=name,
        vocab_size=config.integer("vocab_size", 1, MAX_VOCAB),
        width=width,
        layers=layers,
        norm_eps=config.number("rms_norm_eps", 0.0, 1.0),
        max_length=longest_context(config, layers),
        embed_scale=family.embed_scale(width),
        final_softcap=config.optional_number("final_logit_softcapping", 1e-6, 1e6),
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )
    biases = family.biases(config)
    config.refuse_unread()
    return spec, biases


def longest_context(config: Config, layers: tuple[LayerSpec, ...]) -> int:
    """The context a checkpoint supports: `max_position_embeddings`, stretched if that is the trained length.

    llama3 and longrope configurations name the stretched length; yarn the original one (or both); linear and
    dynamic ones the original unless `original_max_position_embeddings` says otherwise. `context_is_stretched`
    switches it off.
    """
    length = config.integer("max_position_embeddings", 1, MAX_LENGTH)
    if config.value("context_is_stretched", False):
        return length
    for rope in {layer.attention.rope.kind: layer.attention.rope for layer in layers}.values():
        if rope.kind in ("linear", "dynamic", "yarn"):
            length = max(length, min(MAX_LENGTH, int(rope.original_length * rope.params["factor"])))
    return length


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """Heads of one attention layer."""

    heads: int
    kv_heads: int
    head_size: int


def read_heads(config: Config) -> HeadSizes:
    """Heads, KV heads (default: all) and head size (default: width over heads).

    Raises:
        CheckpointError: heads do not divide, or the size is odd or too large.
    """
    width = config.integer("hidden_size", 1, MAX_WIDTH)
    heads = config.integer("num_attention_heads", 1, 4096)
    kv_heads = config.integer("num_key_value_heads", 1, 4096, heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{heads} query heads cannot be shared among {kv_heads} KV heads in {config.where}"
        )
    if config.value("head_dim") is None and width % heads:
        raise CheckpointError(f"hidden_size {width} is not a multiple of {heads} heads in {config.where}")
    head_size = config.integer("head_dim", 2, MAX_HEAD_SIZE, width // heads)
    if head_size % 2:
        raise CheckpointError(f"head size {head_size} in {config.where} is odd; rotary embeddings need pairs")
    return HeadSizes(heads=heads, kv_heads=kv_heads, head_size=head_size)


def layer_type(config: Config, index: int, otherwise: Callable[[int], str]) -> str:
    """`full_attention` or `sliding_attention` for a layer: from `layer_types`, else by the family's rule.

    Raises:
        CheckpointError: another word, or a list of another length than the layers.
    """
    listed = config.value("layer_types")
    if listed is None:
        return otherwise(index)
    if not isinstance(listed, list) or len(listed) != config.value("num_hidden_layers"):
        raise CheckpointError(f"layer_types in {config.where} must name one type per layer")
    if listed[index] not in ("full_attention", "sliding_attention"):
        raise CheckpointError(
            f"layer type {listed[index]!r} in {config.where} is not supported; "
            f"known: full_attention, sliding_attention"
        )
    return listed[index]


def read_window(config: Config) -> int | None:
    """`sliding_window` in tokens; None when absent or 0."""
    return config.integer("sliding_window", 0, MAX_LENGTH, 0) or None
