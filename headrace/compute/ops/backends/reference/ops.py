"""Every operation of a forward pass in numpy.

A row of a result is computed from its own inputs only, by calls whose shapes do not depend on the other
rows: BLAS may choose another order of summation for another shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.base.errors import ShapeError
from headrace.compute.ops.api import F32, AttentionParams, ForwardContext
from headrace.compute.ops.backends.reference.kv import ReferenceKV, encode_query


@dataclass(frozen=True, slots=True)
class Matrix:
    """A dequantized weight matrix [N, K] float32, C-contiguous."""

    array: F32


@dataclass(frozen=True, slots=True)
class Angles:
    """Angle tables [rows, half] float32, shared with the caller."""

    cosines: F32
    sines: F32


class ReferenceOps:
    """See `Ops`. Values are float32 arrays [T, columns]."""

    def __init__(self) -> None:
        self.kept: list[F32] = []

    def embed(self, ctx: ForwardContext, table: Matrix, scale: float) -> F32:
        """[T, E]: rows of the table times scale."""
        return table.array[ctx.token_ids] * np.float32(scale)

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        """x / sqrt(mean(x^2) + eps) * weight, per row."""
        squares = np.square(np.ascontiguousarray(x), dtype=np.float64)
        mean = squares.sum(axis=-1, keepdims=True) / x.shape[-1]
        return (x * (1.0 / np.sqrt(mean + eps)).astype(np.float32)) * weight

    def linear(self, x: F32, weight: Matrix, bias: F32 | None = None) -> F32:
        """[rows, N] = x W^T + bias; one matrix-vector product per row."""
        out = np.empty((x.shape[0], weight.array.shape[0]), np.float32)
        for row in range(x.shape[0]):
            np.dot(weight.array, np.ascontiguousarray(x[row]), out=out[row])
        return out if bias is None else out + bias

    def split(self, x: F32, sizes: Sequence[int]) -> list[F32]:
        """Column ranges of x, as views."""
        if sum(sizes) != x.shape[1]:
            raise ShapeError(f"cannot split {x.shape[1]} columns into {list(sizes)}")
        edges = np.cumsum(np.asarray(sizes))
        return [x[:, end - size : end] for end, size in zip(edges, sizes, strict=True)]

    def head_norm(self, x: F32, weight: F32, eps: float, head_size: int) -> F32:
        """`rms_norm` of each head."""
        heads = np.ascontiguousarray(x).reshape(-1, head_size)
        return self.rms_norm(heads, weight, eps).reshape(x.shape)

    def rope(self, ctx: ForwardContext, x: F32, table: Angles, head_size: int) -> F32:
        """Rotate pairs (i, i + half) of the first 2 * half dims of each head."""
        half = table.cosines.shape[1]
        heads = np.ascontiguousarray(x).reshape(x.shape[0], -1, head_size).copy()
        cosines = table.cosines[ctx.rope_rows][:, None, :]
        sines = table.sines[ctx.rope_rows][:, None, :]
        first, second = heads[..., :half].copy(), heads[..., half : 2 * half].copy()
        heads[..., :half] = first * cosines - second * sines
        heads[..., half : 2 * half] = second * cosines + first * sines
        return heads.reshape(x.shape)

    def attention(
        self, ctx: ForwardContext, q: F32, k: F32, v: F32, layer: int, params: AttentionParams
    ) -> F32:
        """Write k and v, then attend: each query alone, over the keys of its own window."""
        kv = ctx.kv
        if not isinstance(kv, ReferenceKV):
            raise ShapeError("the reference backend runs over its own KV memory only")
        shape = (q.shape[0], -1, params.head_size)
        queries, size = np.ascontiguousarray(q).reshape(shape), kv.geometry.block_size
        if kv.geometry.dtype == "int16":
            codes, scales = encode_query(queries)
            queries = codes * scales
        blocks = ctx.tables[ctx.row_of, ctx.positions // size]
        kv.write(layer, blocks, ctx.positions, k.reshape(shape), v.reshape(shape))
        out = np.empty(queries.shape, np.float32)
        for t in range(q.shape[0]):
            end = int(ctx.positions[t]) + 1
            begin = 0 if params.window is None else max(0, end - params.window)
            keys, values = kv.gather(layer, ctx.tables[ctx.row_of[t]], begin, end)
            out[t] = attend(queries[t], keys, values, params)
        return out.reshape(q.shape)

    def glu(self, gate: F32, up: F32, kind: str) -> F32:
        """act(gate) * up; kind `silu` or `gelu_tanh`."""
        g = np.ascontiguousarray(gate)
        if kind == "silu":
            with np.errstate(over="ignore"):
                return g / (np.float32(1) + np.exp(-g)) * up
        if kind == "gelu_tanh":
            inner = np.float32(np.sqrt(2 / np.pi)) * (g + np.float32(0.044715) * g * g * g)
            return np.float32(0.5) * g * (np.float32(1) + np.tanh(inner)) * up
        raise ShapeError(f"unknown activation {kind!r}; known: silu, gelu_tanh")

    def add(self, x: F32, y: F32) -> F32:
        """x + y."""
        return x + y

    def select(self, ctx: ForwardContext, x: F32) -> F32:
        """[S, E]: the rows `ctx.logit_rows` of x."""
        return x[ctx.logit_rows]

    def softcap(self, x: F32, cap: float) -> F32:
        """cap * tanh(x / cap)."""
        return np.float32(cap) * np.tanh(np.ascontiguousarray(x) / np.float32(cap))

    def given(self, ctx: ForwardContext, index: int, width: int) -> F32:
        """[T, width]: activations that the context holds."""
        wanted, shapes = (len(ctx.token_ids), width), [values.shape for values in ctx.given]
        if index >= len(shapes) or shapes[index] != wanted:
            raise ShapeError(f"activations {index} must be of shape {wanted}, got {shapes}")
        return ctx.given[index]

    def keep(self, x: F32) -> None:
        """Remember x."""
        self.kept.append(np.ascontiguousarray(x))


def attend(query: F32, keys: F32, values: F32, params: AttentionParams) -> F32:
    """[H, D]: one query [H, D] over keys and values [N, K, D]; head h uses KV head h // (H / K)."""
    share = params.heads // params.kv_heads
    out = np.empty_like(query)
    for kv_head in range(params.kv_heads):
        own_keys = np.ascontiguousarray(keys[:, kv_head])
        own_values = np.ascontiguousarray(values[:, kv_head].T)
        for head in range(kv_head * share, (kv_head + 1) * share):
            scores = np.dot(own_keys, np.ascontiguousarray(query[head])) * np.float32(params.scale)
            if params.softcap is not None:
                scores = np.float32(params.softcap) * np.tanh(scores / np.float32(params.softcap))
            weights = np.exp(scores - scores.max())
            out[head] = np.dot(own_values, weights) / weights.sum(dtype=np.float64).astype(np.float32)
    return out
