"""Bytes and operations of a model's steps, counted from its packed weights."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Work
from headrace.compute.ops.api import Weight
from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions
from headrace.compute.weights.checkpoint import Checkpoint, open_checkpoint

PANEL = 16
"""Rows of a panel: a packed matrix is a whole number of them."""
FLOAT_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class ModelCost:
    """A model in numbers. Body: everything that runs for each token; head: only where logits are wanted."""

    body_bytes: float
    head_bytes: float
    body_int8: float
    """Weights (not operations) of the body in quantized formats, per token."""
    body_float: float
    """The others; those whose pairs one instruction multiplies count half."""
    head_weights: float
    head_is_float: bool
    kv_token_bytes: float
    """Keys and values of one token over all layers, 16-bit."""
    attention_per_key: float
    """Operations of one query with one key over all layers: scores and values, 2 each."""

    def prefill(self, tokens: int, step_tokens: int) -> Work:
        """`tokens` of one prompt in steps of `step_tokens`; logits of the last token only."""
        steps = -(-tokens // step_tokens)
        seen = sum(min(tokens, (i + 1) * step_tokens) for i in range(steps))
        read = steps * self.body_bytes + self.head_bytes + seen * self.kv_token_bytes
        pairs = tokens * (tokens + 1) / 2
        return self._work(read, tokens, 1, pairs, self.body_bytes + tokens * self.kv_token_bytes)

    def decode(self, depth: int, sequences: int = 1, *, shared: int = 0) -> Work:
        """One step: a token of each of `sequences` behind `depth` tokens, the first `shared` in common.

        Common keys are counted once: to read them for each sequence is a choice of implementation.
        """
        keys = sequences * (depth + 1)
        distinct = keys - (sequences - 1) * shared
        read = self.body_bytes + self.head_bytes + distinct * self.kv_token_bytes
        return self._work(read, sequences, sequences, keys, read)

    def _work(self, read: float, tokens: float, logits: float, pairs: float, step: float) -> Work:
        head = 2 * self.head_weights * logits
        return Work(
            bytes_read=read,
            int8_ops=2 * self.body_int8 * tokens + (0 if self.head_is_float else head),
            int16_ops=self.attention_per_key * pairs,
            float_ops=2 * self.body_float * tokens + (head if self.head_is_float else 0),
            step_bytes=step,
        )


def cost_of(path: Path, *, rounds: bool = False) -> ModelCost:
    """Count a checkpoint; packs one panel of each matrix to learn its packed size.

    `rounds`: bfloat16 weights are multiplied in pairs.
    """
    checkpoint = open_checkpoint(path)
    backend = NativeBackend(NativeOptions(isa="portable"))
    try:
        return _count(checkpoint, backend, rounds=rounds)
    finally:
        backend.close()


def _count(checkpoint: Checkpoint, backend: NativeBackend, *, rounds: bool) -> ModelCost:
    weights, spec = checkpoint.weights, checkpoint.spec
    head_name = "head.weight" if weights.has("head.weight") else "embed.weight"
    body_bytes = body_int8 = body_float = 0.0
    for name in weights.names():
        if not _is_matrix(name):
            continue
        weight = weights.matrix(name)
        body_bytes += packed_bytes(weight, backend)
        if weight.type_name in FLOAT_TYPES:
            body_float += _products(weight, rounds=rounds)
        else:
            body_int8 += weight.n * weight.k
    head = weights.matrix(head_name)
    attention = [layer.attention for layer in spec.layers]
    return ModelCost(
        body_bytes=body_bytes,
        head_bytes=packed_bytes(head, backend),
        body_int8=body_int8,
        body_float=body_float,
        head_weights=_products(head, rounds=rounds),
        head_is_float=head.type_name in FLOAT_TYPES,
        kv_token_bytes=sum(2 * a.kv_heads * a.head_size * 2 for a in attention),
        attention_per_key=sum(4 * a.heads * a.head_size for a in attention),
    )


def _products(weight: Weight, *, rounds: bool) -> float:
    return weight.n * weight.k / (2 if rounds and weight.type_name == "bf16" else 1)


def _is_matrix(name: str) -> bool:
    """Canonical names are `layers.3.gate.weight`; norms and biases are too small to count."""
    parts = name.split(".")
    return len(parts) == 4 and parts[2] in {"q", "k", "v", "o", "gate", "up", "down"} and parts[3] == "weight"


def packed_bytes(weight: Weight, backend: NativeBackend) -> float:
    """Bytes of the whole matrix once it is packed."""
    rows = min(PANEL, weight.n)
    first = Weight(
        name=weight.name, type_name=weight.type_name, n=rows, k=weight.k, data=weight.data[:rows], order=None
    )
    return backend.matrix([first]).parts[0].bytes * -(-weight.n // PANEL)
