"""From a checkpoint to a model that a backend can run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.base.specs import ModelSpec, RopeSpec
from headrace.compute.models.decoder import (
    AttentionWeights,
    DecoderWeights,
    MlpWeights,
    make_forward,
    make_hidden,
)
from headrace.compute.models.rope import RopeBank
from headrace.compute.ops.api import F32, SHIFT_SPAN, Backend, Forward, Handle, KVGeometry, KVPool
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.compute.weights.packed.cache import PackedCache
from headrace.compute.weights.packed.store import PackedStore

ProgressFn = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in a backend's form.

    `weight_bytes` counts stored bytes, each once: those of the embeddings, `layer_bytes` of each layer, and
    `head_bytes` of the last norm and the head, which may be the embeddings. `forward` (to logits) and
    `hidden` (to hidden states: no head) are for `Backend.compile`.
    """

    spec: ModelSpec
    weights: DecoderWeights
    forward: Forward
    hidden: Forward
    weight_bytes: int
    layer_bytes: tuple[int, ...]
    head_bytes: int
    rope: RopeBank
    key_biases: tuple[F32 | None, ...] = ()
    """Per layer [1, K, D]: the bias that all its keys share; see `shift_keys`."""

    def shift_keys(self, pool: KVPool) -> None:
        """Make int8 keys precise where a bias would set their scale; call it before the first step."""
        if pool.geometry.dtype != "int8":
            return
        means: dict[int, tuple[F32, F32]] = {}
        for layer, bias in enumerate(self.key_biases):
            if bias is None:
                continue
            spec = self.spec.layers[layer].attention.rope
            if spec.kind == "none":
                pool.shift_keys(layer, bias)
                continue
            tables = self.rope.table(spec)
            key = id(tables[0])  # layers of one rotary embedding share its tables
            if key not in means:
                means[key] = _span_means(tables[0]), _span_means(tables[1])
            pool.shift_keys(layer, _turned(bias, *means[key]))

    def geometry(self, block_size: int, dtype: str) -> KVGeometry:
        """The shape of the model's KV for blocks of `block_size` tokens in a number format of `KV_BITS`."""
        attention = self.spec.layers[0].attention
        return KVGeometry(
            layers=len(self.spec.layers),
            kv_heads=attention.kv_heads,
            head_size=attention.head_size,
            block_size=block_size,
            dtype=dtype,
        )


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    max_model_len: int,
    *,
    max_slots: int = 64,
    packed: PackedCache | None = None,
    progress: ProgressFn = lambda done, total: None,
) -> LoadedModel:
    """Hand all weights to the backend.

    Args:
        checkpoint: an opened checkpoint.
        backend: takes the weights over in its own form.
        max_model_len: most positions of a sequence; angle tables are made for it.
        max_slots: sequences that may run together (see `RopeBank`).
        packed: where packed weights are kept between starts; None: nowhere.
        progress: told after each layer.

    Raises:
        CheckpointError: a weight has a number format that the backend lacks.
    """
    spec = checkpoint.spec
    rope = RopeBank([layer.attention.rope for layer in spec.layers], max_model_len, max_slots)
    store = PackedStore(backend, checkpoint, packed)
    loader = _Loader(checkpoint, backend, rope, store)
    embed = loader.matrix("embed")
    embed_bytes = loader.weight_bytes
    layer_bytes: list[int] = []
    layers: list[tuple[AttentionWeights, MlpWeights]] = []
    for index in range(len(spec.layers)):
        before = loader.weight_bytes
        layers.append((loader.attention(index), loader.mlp(index)))
        layer_bytes.append(loader.weight_bytes - before)
        if not store.is_found:
            checkpoint.weights.release()
        progress(index + 1, len(spec.layers))
    before, is_tied = loader.weight_bytes, not checkpoint.weights.has("head.weight")
    weights = DecoderWeights(
        embed=embed,
        layers=tuple(layers),
        norm=loader.vector("norm"),
        head=embed if is_tied else loader.matrix("head"),
    )
    head_bytes = loader.weight_bytes - before + embed_bytes * is_tied
    key_biases = tuple(loader.key_bias(index) for index in range(len(spec.layers)))
    checkpoint.weights.release()
    store.finish()
    return LoadedModel(
        spec=spec,
        weights=weights,
        forward=make_forward(spec, weights),
        hidden=make_hidden(spec, weights),
        weight_bytes=loader.weight_bytes,
        layer_bytes=tuple(layer_bytes),
        head_bytes=head_bytes,
        rope=rope,
        key_biases=key_biases,
    )


def _span_means(table: F32) -> F32:
    """Angle table [P, half] on average over each span of positions: [spans, 1, half], float64."""
    starts = range(0, len(table), SHIFT_SPAN)
    return np.stack([table[at : at + SHIFT_SPAN].mean(0, np.float64) for at in starts])[:, None]


def _turned(bias: F32, cosines: F32, sines: F32) -> F32:
    """A bias of keys [1, K, D] as rotary embeddings turn it, on average over each span [spans, K, D].

    Slow dims of Qwen2's keys have biases a hundred times their spread.
    """
    half = cosines.shape[-1]
    first, second, rest = bias[..., :half], bias[..., half : 2 * half], bias[..., 2 * half :]
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    rest = np.broadcast_to(rest, (len(cosines), *rest.shape[1:]))
    return np.concatenate([*turned, rest], axis=-1).astype(np.float32)


class _Loader:
    """Turns names into handles; angle tables are handed over once per rotary embedding."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, rope: RopeBank, store: PackedStore) -> None:
        self._weights = checkpoint.weights
        self._spec = checkpoint.spec
        self._backend = backend
        self._rope = rope
        self._store = store
        self._tables: list[tuple[RopeSpec, Handle]] = []
        self.weight_bytes = 0

    def matrix(self, *names: str) -> Handle:
        parts = [self._weights.matrix(f"{name}.weight") for name in names]
        self.weight_bytes += sum(part.data.nbytes for part in parts)
        return self._store.matrix(parts)

    def vector(self, name: str) -> Handle:
        values = self._weights.vector(f"{name}.weight")
        self.weight_bytes += values.nbytes
        return self._backend.vector(values)

    def maybe_vector(self, name: str) -> Handle | None:
        return self.vector(name) if self._weights.has(f"{name}.weight") else None

    def bias(self, names: Sequence[str], sizes: Sequence[int]) -> Handle | None:
        """The biases of stacked matrices; parts without one get zeros."""
        present = [self._weights.has(f"{name}.bias") for name in names]
        if not any(present):
            return None
        parts = [
            self._weights.vector(f"{name}.bias") if has else np.zeros(size, np.float32)
            for name, has, size in zip(names, present, sizes, strict=True)
        ]
        return self._backend.vector(np.concatenate(parts))

    def key_bias(self, index: int) -> F32 | None:
        """The bias of a layer's keys [1, K, D].

        None: no bias, or one that is not common to all keys (head norms, angles that depend on the length,
        a soft cap on scores).
        """
        name, a = f"layers.{index}.k.bias", self._spec.layers[index].attention
        if not self._weights.has(name) or a.qk_norm or a.softcap is not None or self._rope.kind != "static":
            return None
        return self._weights.vector(name).astype(np.float32).reshape(1, a.kv_heads, a.head_size)

    def rope_table(self, spec: RopeSpec) -> Handle:
        if spec.kind == "none":
            return None
        for known, handle in self._tables:
            if known == spec:
                return handle
        handle = self._backend.rope_table(*self._rope.table(spec))
        self._tables.append((spec, handle))
        return handle

    def attention(self, index: int) -> AttentionWeights:
        at, a = f"layers.{index}.", self._spec.layers[index].attention
        qkv = [at + part for part in "qkv"]
        kv = a.kv_heads * a.head_size
        return AttentionWeights(
            norm=self.vector(at + "attn_norm"),
            qkv=self.matrix(*qkv),
            qkv_bias=self.bias(qkv, (a.heads * a.head_size, kv, kv)),
            q_norm=self.maybe_vector(at + "q_norm"),
            k_norm=self.maybe_vector(at + "k_norm"),
            o=self.matrix(at + "o"),
            o_bias=self.bias([at + "o"], (self._spec.width,)),
            post_norm=self.maybe_vector(at + "post_attn_norm"),
            rope=self.rope_table(a.rope),
        )

    def mlp(self, index: int) -> MlpWeights:
        at, width = f"layers.{index}.", self._spec.layers[index].mlp_width
        gate_up = [at + "gate", at + "up"]
        return MlpWeights(
            norm=self.vector(at + "mlp_norm"),
            gate_up=self.matrix(*gate_up),
            gate_up_bias=self.bias(gate_up, (width, width)),
            down=self.matrix(at + "down"),
            down_bias=self.bias([at + "down"], (self._spec.width,)),
            post_norm=self.maybe_vector(at + "post_mlp_norm"),
        )
