"""From a checkpoint to a model that a backend can run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.base.specs import ModelSpec, RopeSpec
from headrace.compute.models.decoder import AttentionWeights, DecoderWeights, MlpWeights, make_forward
from headrace.compute.models.rope import RopeBank
from headrace.compute.ops.api import Backend, Forward, Handle, KVGeometry
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.compute.weights.packed.cache import PackedCache
from headrace.compute.weights.packed.store import PackedStore

ProgressFn = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in a backend's form.

    `weight_bytes` counts stored bytes, each once; `forward` is for `Backend.compile`.
    """

    spec: ModelSpec
    forward: Forward
    weight_bytes: int
    rope: RopeBank

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
    layers: list[tuple[AttentionWeights, MlpWeights]] = []
    for index in range(len(spec.layers)):
        layers.append((loader.attention(index), loader.mlp(index)))
        if not store.is_found:
            checkpoint.weights.release()
        progress(index + 1, len(spec.layers))
    weights = DecoderWeights(
        embed=embed,
        layers=tuple(layers),
        norm=loader.vector("norm"),
        head=loader.matrix("head") if checkpoint.weights.has("head.weight") else embed,
    )
    checkpoint.weights.release()
    store.finish()
    return LoadedModel(
        spec=spec, forward=make_forward(spec, weights), weight_bytes=loader.weight_bytes, rope=rope
    )


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
