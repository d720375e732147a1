"""What a pass computes: multiplications and additions of matrices and attention, for the roofline."""

from dataclasses import dataclass

import numpy as np

from headrace.base.specs import ModelSpec
from headrace.compute.ops.api import ForwardContext, KVGeometry


def token_bytes(geometry: KVGeometry) -> int:
    """The part of a block's bytes that one of its tokens takes."""
    return geometry.block_bytes // geometry.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Operations of a model. A multiply-add counts as two; norms, angles and activations do not count."""

    per_token: int
    """Matrices of all layers."""
    per_logits: int
    """The head, for each row of logits."""
    attention: tuple[tuple[int | None, int], ...]
    """(window or None, operations per query and visible key) of layers with equal windows, added up."""

    @classmethod
    def of(cls, spec: ModelSpec) -> "Work":
        """The operations of a model: 2 per weight, and 4 per query head, head column and visible key."""
        weights = 0
        by_window: dict[int | None, int] = {}
        for layer in spec.layers:
            a = layer.attention
            queries = a.heads * a.head_size
            weights += spec.width * (2 * queries + 2 * a.kv_heads * a.head_size + 3 * layer.mlp_width)
            by_window[a.window] = by_window.get(a.window, 0) + 4 * queries
        return cls(
            per_token=2 * weights,
            per_logits=2 * spec.width * spec.vocab_size,
            attention=tuple(by_window.items()),
        )

    def operations(self, context: ForwardContext, num_keys: int, *, has_head: bool = True) -> int:
        """Operations of a pass. A query at position p sees p + 1 keys, or as many as its window lets it.

        Args:
            context: the pass.
            num_keys: the sum of its `key_len`.
            has_head: whether the wanted rows become logits.
        """
        positions = context.positions
        is_decoding = len(positions) == len(context.key_len)
        total = self.per_token * len(positions)
        if has_head:
            total += self.per_logits * len(context.logit_rows)
        for window, each in self.attention:
            if window is None and is_decoding:
                total += each * num_keys
                continue
            seen = positions if window is None else np.minimum(positions, window - 1)
            total += each * (int(seen.sum(dtype=np.int64)) + len(positions))
        return total
