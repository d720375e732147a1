"""A model as data: what the one decoder needs to know of a family, and where text comes from."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, overload


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding.

    `kind` is none, default, linear, dynamic, yarn, llama3 or longrope; `params` holds its numbers.
    """

    kind: str = "default"
    base: float = 10000.0
    dims: int = 0
    """Rotated dimensions of each head (the first ones); pairs lie half apart."""
    original_length: int = 0
    """Context length of training, before scaling."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_measuring(self) -> bool:
        """Whether angles depend on the length of a sequence's prompt."""
        return self.kind in ("dynamic", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One layer's attention."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """A query at p sees keys in (p - window, p]; None: all."""
    softcap: float | None = None
    qk_norm: bool = False
    rope: RopeSpec = field(default_factory=RopeSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One decoder layer. `norms` is `pre` (llama) or `sandwich` (gemma: also after attention and MLP)."""

    attention: AttentionSpec
    mlp_width: int
    activation: str = "silu"
    """`silu` or `gelu_tanh`."""
    norms: str = "pre"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole decoder."""

    family: str
    vocab_size: int
    """Rows of the output head (token ids are below this)."""
    width: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    max_length: int
    """Longest context the checkpoint supports, RoPE scaling included."""
    embed_scale: float = 1.0
    final_softcap: float | None = None
    tied_embeddings: bool = False


class TextArray(Sequence[str]):
    """Many texts as one block of bytes: made in no time, and a text becomes an object when it is asked for.

    Args:
        blob: the texts in UTF-8, one after the other.
        ends: where each ends in `blob` (unsigned 64-bit integers in the machine's order).
        has_empty: whether one of them is "".
    """

    __slots__ = ("blob", "ends", "has_empty")

    def __init__(self, blob: bytes, ends: bytes, *, has_empty: bool) -> None:
        self.blob = blob
        self.ends = memoryview(ends).cast("Q")
        self.has_empty = has_empty

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextArray":
        """The array of these texts."""
        encoded = [text.encode() for text in texts]
        ends = array("Q", accumulate(map(len, encoded)))
        return cls(b"".join(encoded), ends.tobytes(), has_empty=b"" in encoded)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self.blob[self.ends[place - 1] if place else 0 : self.ends[place]].decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """Where a model's tokenizer, chat template and special tokens are read from.

    `gguf` holds the `tokenizer.*` metadata of a GGUF file (arrays as sequences), else `directory` holds
    tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json,
    chat_template.jinja and config.json.
    """

    gguf: Mapping[str, Any] | None = None
    directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling defaults and end tokens that a checkpoint carries (generation_config.json).

    None: not given.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    end_ids: tuple[int, ...] = ()
