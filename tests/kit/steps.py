"""Small steps for backends: inputs enter through an embedding table of float32 rows, one per token."""

from dataclasses import dataclass

import numpy as np

from headrace.compute.ops.api import AttentionParams, ForwardContext, KVGeometry, StepLimits, Weight

F16_FIELDS = {
    "q4_0": (18, 32, (0,)),
    "q4_1": (20, 32, (0, 2)),
    "q5_0": (22, 32, (0,)),
    "q5_1": (24, 32, (0, 2)),
    "q8_0": (34, 32, (0,)),
    "q2_k": (84, 256, (80, 82)),
    "q3_k": (110, 256, (108,)),
    "q4_k": (144, 256, (0, 2)),
    "q5_k": (176, 256, (0, 2)),
    "q6_k": (210, 256, (208,)),
}
"""Per quantized scheme: bytes and values of a block, and where its f16 numbers lie."""

SCHEMES = ("f32", "f16", "bf16", *F16_FIELDS)


def i32(values):
    return np.ascontiguousarray(values, dtype=np.int32)


def group_size(scheme):
    return F16_FIELDS[scheme][1] if scheme in F16_FIELDS else 1


def random_weight(rng, scheme, n, k, order=None):
    """A weight with random codes and tame scales."""
    if scheme in F16_FIELDS:
        size, values, fields = F16_FIELDS[scheme]
        blocks = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
        for at in fields:
            scales = rng.uniform(0.01, 0.05, (n, k // values)).astype(np.float16)
            blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
        data = blocks.reshape(n, -1)
    else:
        values = rng.standard_normal((n, k)).astype(np.float32)
        if scheme == "f16":
            values = values.astype(np.float16)
        if scheme == "bf16":
            values = (values.view(np.uint32) >> 16).astype(np.uint16)
        data = values.view(np.uint8).reshape(n, -1)
    data = np.ascontiguousarray(data)
    return Weight(name=f"{scheme} {n}x{k}", type_name=scheme, n=n, k=k, data=data, order=order)


def float_weight(values):
    values = np.ascontiguousarray(values, np.float32)
    n, k = values.shape
    return Weight(name="values", type_name="f32", n=n, k=k, data=values.view(np.uint8).reshape(n, -1))


@dataclass
class Rows:
    """Rows of a step: (first position, tokens, table) each; token t has id t unless ids are given."""

    rows: list
    width: int
    ids: list | None = None
    logits: list | None = None

    @property
    def num_tokens(self):
        return sum(count for _, count, _ in self.rows)

    def context(self, kv):
        positions, row_of, starts, key_len = [], [], [0], []
        tables = np.zeros((len(self.rows), self.width), np.int32)
        for r, (start, count, table) in enumerate(self.rows):
            positions += range(start, start + count)
            row_of += [r] * count
            starts.append(starts[-1] + count)
            key_len.append(start + count)
            tables[r, : len(table)] = table
        total = self.num_tokens
        return ForwardContext(
            token_ids=i32(self.ids if self.ids is not None else range(total)),
            positions=i32(positions),
            row_of=i32(row_of),
            query_start=i32(starts),
            key_len=i32(key_len),
            tables=tables,
            rope_rows=i32(positions),
            logit_rows=i32(self.logits if self.logits is not None else range(total)),
            kv=kv,
        )


def geometry(layers=1, kv_heads=1, head_size=16, block_size=16, dtype="f32"):
    return KVGeometry(
        layers=layers, kv_heads=kv_heads, head_size=head_size, block_size=block_size, dtype=dtype
    )


def limits(tokens=64, rows=8, width=32):
    return StepLimits(max_tokens=tokens, max_rows=rows, max_logits=tokens, table_width=width)


def run_ops(backend, make, tokens, kv=None):
    """Run `make(backend)(ops, ctx)` over one row of `tokens` tokens; every result row."""
    pool = kv or backend.kv_pool(geometry(block_size=64), 1)
    step = Rows([(0, tokens, [0])], 1)
    bounds = StepLimits(max_tokens=tokens, max_rows=1, max_logits=tokens, table_width=1)
    return np.array(backend.compile(make(backend), bounds, pool).run(step.context(pool)))


class TinyModel:
    """A made-up decoder with every kind of operation; sizes are odd on purpose."""

    width, heads, kv_heads, head_size, mlp, vocab, layers = 96, 4, 2, 24, 160, 53, 2

    def __init__(self, seed=3, schemes=("q4_0", "f16", "q8_0"), norms="pre", scale=0.02):
        rng = np.random.default_rng(seed)
        e, h, k, d = self.width, self.heads, self.kv_heads, self.head_size
        first, second, third = schemes
        self.norms = norms
        self.embed = float_weight(rng.standard_normal((self.vocab, e)).astype(np.float32))
        self.head = random_weight(rng, third, self.vocab, e)
        self.blocks = []
        for _ in range(self.layers):
            self.blocks.append(
                {
                    "qkv": [
                        random_weight(rng, first, h * d, e),
                        random_weight(rng, first, k * d, e),
                        random_weight(rng, second, k * d, e),
                    ],
                    "o": [random_weight(rng, third, e, h * d)],
                    "gate_up": [
                        random_weight(rng, second, self.mlp, e),
                        random_weight(rng, first, self.mlp, e),
                    ],
                    "down": [random_weight(rng, first, e, self.mlp)],
                }
            )
        self.vectors = rng.uniform(0.5, 1.5, (8, e)).astype(np.float32)
        self.bias = rng.standard_normal((h + 2 * k) * d).astype(np.float32)
        angles = np.outer(np.arange(600), 0.5 ** np.arange(d // 2)).astype(np.float32)
        self.angles = np.cos(angles), np.sin(angles)
        self.params = [
            AttentionParams(heads=h, kv_heads=k, head_size=d, scale=0.2, softcap=20.0, window=None),
            AttentionParams(heads=h, kv_heads=k, head_size=d, scale=0.2, softcap=None, window=9),
        ]

    def geometry(self, block_size=4, dtype="f16"):
        return geometry(self.layers, self.kv_heads, self.head_size, block_size, dtype)

    def forward(self, backend):
        """The forward pass over handles of one backend."""
        blocks = [{k: backend.matrix(w) for k, w in block.items()} for block in self.blocks]
        embed, head = backend.matrix([self.embed]), backend.matrix([self.head])
        norm = [backend.vector(v) for v in self.vectors]
        bias, rope = backend.vector(self.bias), backend.rope_table(*self.angles)
        head_norm = backend.vector(self.vectors[0, : self.head_size])
        sizes = (self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.head_size)

        def forward(ops, ctx):
            x = ops.embed(ctx, embed, 0.5)
            for i, w in enumerate(blocks):
                q, k, v = ops.split(ops.linear(ops.rms_norm(x, norm[0], 1e-5), w["qkv"], bias), sizes)
                q, k = (ops.head_norm(y, head_norm, 1e-5, self.head_size) for y in (q, k))
                q, k = (ops.rope(ctx, y, rope, self.head_size) for y in (q, k))
                h = ops.linear(ops.attention(ctx, q, k, v, i, self.params[i]), w["o"])
                if self.norms == "sandwich":
                    h = ops.rms_norm(h, norm[2], 1e-5)
                x = ops.add(x, h)
                gate_up = ops.linear(ops.rms_norm(x, norm[1], 1e-5), w["gate_up"])
                gate, up = ops.split(gate_up, (self.mlp, self.mlp))
                h = ops.linear(ops.glu(gate, up, "gelu_tanh" if i else "silu"), w["down"])
                if self.norms == "sandwich":
                    h = ops.rms_norm(h, norm[3], 1e-5)
                x = ops.add(x, h)
            x = ops.rms_norm(ops.select(ctx, x), norm[4], 1e-5)
            return ops.softcap(ops.linear(x, head), 30.0)

        return forward
