"""What a backend offers: `Ops` (one forward pass), `Program` (a forward pass made ready), `Backend`.

Shapes: T tokens of the step, R rows, S rows whose logits are wanted, E width, N output columns, V vocabulary,
H query heads, K KV heads, D head size, F MLP width, P positions per block, M table width.

Exactness: a result row depends on its own input row, its position and its sequence's KV only: never on the
number of rows, on neighbours or on thread counts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Value = Any
"""An activation [T or S, columns] float32: an array (reference) or a symbol (a backend that records)."""
Handle = Any
"""A weight in the backend's own form."""

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

KV_BITS = {"f16": 16, "f32": 32, "int8": 8, "int16": 16}
"""Number formats of keys and values, and bits of one (int8, int16: without their scales)."""
SHIFT_SPAN = 512
"""Positions whose int8 keys share a shift."""
UNIT = 16
"""Tokens that KV memory keeps together in blocks of a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight matrix [n, k] as the checkpoint stores it.

    `type_name` is a scheme's name (`f32`, `f16`, `bf16`, `q8_0`, `q4_k` …, lower case GGUF names); `data`
    holds the rows as raw bytes [n, row_bytes] uint8, C-contiguous and possibly a read-only memory map.
    `order`, when given, says which stored row each output row is (used to undo the row permutation of llama
    GGUF files).
    """

    name: str
    type_name: str
    n: int
    k: int
    data: NDArray[np.uint8]
    order: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParams:
    """One layer's attention: `scale` on scores; `softcap`: s = cap * tanh(s / cap); `window` None = full."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    """A query at p sees keys in (p - window, p]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGeometry:
    """Shape of the KV of a model; `kv_heads` and `head_size` per layer are equal in every family so far."""

    layers: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: str
    """A key of `KV_BITS`."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers, scales and padding included: `KVLayer` in headrace/kernels.h."""
        tokens = UNIT if self.block_size % UNIT == 0 else self.block_size
        unit = 2 * tokens * self.head_size * KV_BITS[self.dtype] // 8
        if self.dtype == "int16":
            unit += tokens % 2 * self.head_size * 2
        if self.dtype in ("int8", "int16"):
            unit += 4 * tokens
            unit = -(-unit // 64) * 64 if tokens == UNIT else unit
        return self.layers * self.kv_heads * (self.block_size // tokens) * unit


class KVPool(Protocol):
    """KV memory of one device; zeroed at start."""

    geometry: KVGeometry
    num_blocks: int

    def copy(self, src: int, dst: int) -> None:
        """Copy block `src` to `dst` in all layers."""
        ...

    def read(self, layer: int, block: int) -> tuple[F32, F32]:
        """Keys (less their shift) and values of a block, each [P, K, D] float32 (tests, debugging)."""
        ...

    def shift_keys(self, layer: int, values: F32) -> None:
        """Store int8 keys of `layer` less `values` [spans, K, D], one per `SHIFT_SPAN` positions.

        Called before the first step; attention gives the same results but for rounding. Not for layers with a
        soft cap.
        """
        ...

    def fill(self, block: int, value: float) -> None:
        """Set a whole block (zeroing; NaN in tests)."""
        ...


@dataclass(slots=True, kw_only=True)
class ForwardContext:
    """The inputs of one step. Arrays are int32 and C-contiguous; they are only read."""

    token_ids: I32
    """[T]"""
    positions: I32
    """[T] absolute positions."""
    row_of: I32
    """[T] the row of each token."""
    query_start: I32
    """[R+1] first token of each row."""
    key_len: I32
    """[R] keys after this step's writes, i.e. last position of the row + 1."""
    tables: I32
    """[R, M] block ids."""
    rope_rows: I32
    """[T] row of the angle tables for each token: `positions` unless the RoPE kind depends on the length."""
    logit_rows: I32
    """[S] indices into T whose logits are wanted, ascending."""
    kv: KVPool
    given: "tuple[F32, ...]" = ()
    """[T, width] each: what `Ops.given` gives, in order."""


class Ops(Protocol):
    """The operations of a forward pass. Every result is a new value unless said otherwise."""

    def embed(self, ctx: ForwardContext, table: Handle, scale: float) -> Value:
        """[T, E]: rows of the (dequantized) table at `ctx.token_ids`, times scale."""
        ...

    def rms_norm(self, x: Value, weight: Handle, eps: float) -> Value:
        """x / sqrt(mean(x^2) + eps) * weight, per row. (A `1 + w` form is folded into weight at load.)"""
        ...

    def linear(self, x: Value, weight: Handle, bias: Handle | None = None) -> Value:
        """[rows, N] = x W^T + bias for a handle of `Backend.matrix`.

        Quantized weights may quantize x per row and group.
        """
        ...

    def split(self, x: Value, sizes: Sequence[int]) -> list[Value]:
        """Column ranges of x, as views."""
        ...

    def head_norm(self, x: Value, weight: Handle, eps: float, head_size: int) -> Value:
        """`rms_norm` of each head of `head_size` columns; weight [head_size]."""
        ...

    def rope(self, ctx: ForwardContext, x: Value, table: Handle, head_size: int) -> Value:
        """Rotate the first 2 * half dims of each head, pairs (i, i + half); angles at `ctx.rope_rows`."""
        ...

    def attention(
        self, ctx: ForwardContext, q: Value, k: Value, v: Value, layer: int, params: AttentionParams
    ) -> Value:
        """[T, H * D]: write k and v [T, K * D] into the KV of `layer`, then causal attention of q over it."""
        ...

    def glu(self, gate: Value, up: Value, kind: str) -> Value:
        """act(gate) * up; kind `silu` or `gelu_tanh`."""
        ...

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""
        ...

    def select(self, ctx: ForwardContext, x: Value) -> Value:
        """[S, E]: the rows `ctx.logit_rows` of x."""
        ...

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap)."""
        ...

    def given(self, ctx: ForwardContext, index: int, width: int) -> Value:
        """[T, width]: `ctx.given[index]`, activations that another program kept."""
        ...

    def keep(self, x: Value) -> None:
        """Let `Program.kept` give x [T or S, columns] after each run; the first call is its first value."""
        ...


Forward = Callable[[Ops, ForwardContext], Value]
"""A model's forward pass: [S, V] logits from a context."""


class Program(Protocol):
    """A forward pass made ready: run eagerly, or recorded once and replayed."""

    def run(self, ctx: ForwardContext) -> F32:
        """Logits [S, V] float32, valid until the next run. Writes this step's keys and values to `ctx.kv`."""
        ...

    @property
    def kept(self) -> Sequence[F32]:
        """What the last run kept (`Ops.keep`), [T or S, columns] each; valid until the next run."""
        ...

    @property
    def maxima(self) -> F32 | None:
        """[S, ceil(V / 64)]: the largest of every 64 logits of the last run, +inf for +inf and NaN.

        None: not made. Valid until the next run, and while nobody changes the logits.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step a program must run; buffers are planned for it."""

    max_tokens: int
    max_rows: int
    max_logits: int
    table_width: int
    """Most blocks of one sequence."""


@dataclass(slots=True, kw_only=True)
class SampleBatch:
    """S rows of logits and how to draw from each; the order of operations: `compute/sampling/__init__.py`.

    CSR arrays: entries of row s are [start[s], start[s+1]).
    """

    positions: I32
    """[S] absolute position of the token to draw."""
    seeds: NDArray[np.uint64]
    """[S]"""
    temperature: F32
    """[S], below 1e-6 = greedy"""
    top_k: I32
    """[S], 0 = off"""
    top_p: F32
    """[S], 1 = off"""
    min_p: F32
    """[S], 0 = off"""
    penalties: F32
    """[S, 3] repetition, presence, frequency"""
    num_logprobs: I32
    """[S], -1 = none"""
    seen: "SeenTokens | None" = None
    bias: "TokenBias | None" = None
    allowed: "AllowedMask | None" = None
    maxima: F32 | None = None
    """`Program.maxima` of these rows of logits; None: the backend finds what it needs itself."""


@dataclass(slots=True, kw_only=True)
class SeenTokens:
    """Distinct tokens of prompt and output, for penalties, with their count in the output (0: prompt)."""

    start: I32
    """[S+1]"""
    ids: I32
    counts: I32


@dataclass(slots=True, kw_only=True)
class TokenBias:
    """Values added to logits; -inf bans. An id may occur more than once: its values add up."""

    start: I32
    """[S+1]"""
    ids: I32
    values: F32


@dataclass(slots=True, kw_only=True)
class AllowedMask:
    """`masks` [masks, ceil(V / 32)]: bit id%32 of word id//32. `row` [S] is the mask of each row or -1."""

    row: I32
    masks: NDArray[np.uint32]


@dataclass(slots=True, kw_only=True)
class Sampled:
    """Drawn tokens [S], raw log-probabilities [S], ranks [S] (1 = best), errors [S] (0 = fine).

    Where asked for, also the k most likely ids and raw log-probabilities, [S, max k] (unused entries: id -1).
    """

    tokens: I32
    logprobs: F32
    ranks: I32
    errors: I32
    top_ids: I32 = field(default_factory=lambda: np.empty((0, 0), np.int32))
    top_logprobs: F32 = field(default_factory=lambda: np.empty((0, 0), np.float32))


Sampler = Callable[[F32, F32 | None], tuple[I32, I32]]
"""Tokens and errors, as `sample` gives them, for the logits [S, V] of a step and their `Program.maxima`."""


class Packer(Protocol):
    """How a backend's own form of matrices is kept in a file and taken from it."""

    chunk: int
    """Bytes that one sum stands for."""

    def layout_of(self, forms: Iterable[tuple[str, int]]) -> str:
        """Names the form of matrices in these (schemes, columns): another means other bytes for some."""
        ...

    def checksum(self, data: NDArray[np.uint8]) -> int:
        """The sum of [bytes] uint8, at most `chunk` of them."""
        ...

    def packed(self, handle: Handle) -> Sequence[NDArray[np.uint8]]:
        """The bytes of a handle of `Backend.matrix`, part by part, read-only, without a copy."""
        ...

    def load(self, fd: int, offset: int, size: int, sums: NDArray[np.uint64], mode: str) -> Any:
        """Bytes [offset, offset + size) of an open file in memory.

        `mode`: mapped (`map`), read into huge pages (`read`), or mapped and then moved to huge pages by a
        thread (`auto`). A mapped file must keep its length.

        Raises:
            CheckpointError: they cannot be read, or differ from the sums of their chunks.
        """
        ...

    def adopt(self, parts: Sequence[Weight], region: Any, offsets: Sequence[int]) -> Handle:
        """`Backend.matrix` of parts that lie packed at `offsets` of a region of `load`; copies nothing.

        Raises:
            CheckpointError: a part would lie outside the region.
        """
        ...


class Backend(Protocol):
    """One device kind's implementation of everything numeric."""

    name: str

    @property
    def packer(self) -> Packer | None:
        """Keeps matrices in files; None: their form is not worth it."""
        ...

    def matrix(self, parts: Sequence[Weight]) -> Handle:
        """Take weights over in the backend's own form: parts stacked along N, each in its own scheme.

        Raises:
            CheckpointError: a scheme the backend (and the reference) lacks, named.
        """
        ...

    def vector(self, values: F32) -> Handle:
        """Take a float32 vector over (norm weights, biases)."""
        ...

    def rope_table(self, cosines: F32, sines: F32) -> Handle:
        """Take angle tables [rows, half] over, without a copy: the caller may rewrite rows between steps."""
        ...

    def kv_pool(self, geometry: KVGeometry, num_blocks: int) -> KVPool:
        """Allocate zeroed KV memory."""
        ...

    def compile(self, forward: Forward, limits: StepLimits, kv: KVPool) -> Program:
        """Make a forward pass ready for steps of up to `limits`."""
        ...

    def sample(self, logits: F32, batch: SampleBatch) -> Sampled:
        """Draw one token per row; `logits` [S, V] may be overwritten."""
        ...

    def sampler(self, batch: SampleBatch, vocab: int) -> Sampler:
        """For a batch without `seen`, `bias`, `allowed` and log-probabilities; only positions may change."""
        ...

    def logprobs(self, logits: F32, tokens: I32, k: int) -> Sampled:
        """Raw log-probability and rank of `tokens` [S] and the k most likely tokens, without drawing."""
        ...

    def close(self) -> None:
        """Stop threads and free memory."""
        ...
