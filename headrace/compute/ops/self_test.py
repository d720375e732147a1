"""A start-up test of a backend's kernels: odd shapes against plain numpy, in well under 100 ms.

It finds kernels that do not work on this machine (a wrong build, a faulty emulation of an instruction set);
precision and every shape are the conformance tests' business.
"""

import numpy as np

from headrace.compute.ops.api import (
    F32,
    AttentionParams,
    Backend,
    Forward,
    ForwardContext,
    KVGeometry,
    StepLimits,
    Weight,
)

HEADS, HEAD_SIZE, WIDTH, TOKENS, BLOCK = 2, 24, 96, 7, 4
PARAMS = AttentionParams(heads=HEADS, kv_heads=1, head_size=HEAD_SIZE, scale=0.25)
_LEAST = 2.0**-56
"""Numbers below it count as zero where activations are rounded (`kLeastBfloat` of the kernels)."""


def self_test(backend: Backend, *, rounds: bool = False) -> list[str]:
    """What is wrong with the kernels of `backend`, in words; empty when all is well.

    `rounds`: the backend rounds activations that meet bfloat16 weights, so these products are tested, too.
    """
    rng = _Numbers()
    findings = [_check_products(backend, rng, scheme) for scheme in ("f32", "f16", "q8_0", "q4_0")]
    findings += [_check_rows(backend, rng), _check_attention(backend, rng)]
    findings += [_check_rounded(backend, rng, rows) for rows in (1, TOKENS) if rounds]
    return [finding for finding in findings if finding]


class _Numbers:
    """Numbers without a pattern, about as large as normal ones; `numpy.random` takes longer to import."""

    def __init__(self) -> None:
        self._drawn = 0

    def rows(self, rows: int, width: int) -> F32:
        """[rows, width] of them."""
        at = np.arange(self._drawn, self._drawn + rows * width, dtype=np.uint64)
        self._drawn += rows * width
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53), (32, 1)):
            at = (at + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(factor)
            at ^= at >> np.uint64(shift)
        uniform = (at >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        return (np.float32(4) * uniform - np.float32(2)).reshape(rows, width)


def _weight(values: F32, scheme: str) -> tuple[Weight, F32]:
    """A weight in a scheme made by hand, and its exact values."""
    n, k = values.shape
    if scheme == "f32":
        data, exact = values.view(np.uint8), values
    elif scheme == "f16":
        halves = values.astype(np.float16)
        data, exact = halves.view(np.uint8), halves.astype(np.float32)
    elif scheme == "bf16":
        bits = values.view(np.uint32) >> 16
        data, exact = bits.astype(np.uint16).view(np.uint8), (bits << 16).view(np.float32)
    else:
        top = 127 if scheme == "q8_0" else 7
        groups = values.reshape(n, k // 32, 32)
        scale = (np.abs(groups).max(-1, keepdims=True) / top).astype(np.float16)
        codes = np.rint(groups / scale.astype(np.float32)).clip(-top, top).astype(np.int8)
        exact = (codes * scale.astype(np.float32)).reshape(n, k)
        if scheme == "q4_0":
            nibbles = (codes + 8).astype(np.uint8)
            codes = (nibbles[..., :16] | nibbles[..., 16:] << 4).view(np.int8)
        data = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=-1)
    data = np.ascontiguousarray(data.reshape(n, -1))
    return Weight(name="self_test", type_name=scheme, n=n, k=k, data=data), exact


def _run(backend: Backend, forward: Forward, rows: int = TOKENS) -> F32:
    """Run a forward pass over ids 0 .. TOKENS - 1, logits wanted of the first `rows`."""
    pool = backend.kv_pool(
        KVGeometry(layers=1, kv_heads=1, head_size=HEAD_SIZE, block_size=BLOCK, dtype="f32"), 3
    )
    limits = StepLimits(max_tokens=TOKENS, max_rows=1, max_logits=TOKENS, table_width=2)
    ids = np.arange(TOKENS, dtype=np.int32)
    ctx = ForwardContext(
        token_ids=ids,
        positions=ids,
        row_of=np.zeros(TOKENS, np.int32),
        query_start=np.array([0, TOKENS], np.int32),
        key_len=np.array([TOKENS], np.int32),
        tables=np.array([[2, 1]], np.int32),
        rope_rows=ids,
        logit_rows=ids[:rows],
        kv=pool,
    )
    return np.array(backend.compile(forward, limits, pool).run(ctx))


def _differs(what: str, got: F32, wanted: F32, tolerance: float) -> str:
    error = float(np.abs(got - wanted).max()) / (float(np.abs(wanted).max()) + 1e-30)
    return "" if error <= tolerance else f"{what}: relative error {error:.2g}, allowed {tolerance:g}"


def _check_products(backend: Backend, rng: _Numbers, scheme: str) -> str:
    x = rng.rows(TOKENS, WIDTH)
    weight, exact = _weight(rng.rows(37, WIDTH), scheme)
    table, matrix = backend.matrix([_weight(x, "f32")[0]]), backend.matrix([weight])
    bias = rng.rows(1, 37)[0]
    handle = backend.vector(bias)
    got = _run(
        backend, lambda ops, ctx: ops.linear(ops.select(ctx, ops.embed(ctx, table, 1.0)), matrix, handle)
    )
    return _differs(
        f"product with {scheme}", got, x @ exact.T + bias, 0.02 if scheme.startswith("q") else 1e-5
    )


def _check_rounded(backend: Backend, rng: _Numbers, rows: int) -> str:
    """Products of rounded activations with bfloat16: the same bits everywhere, so there is no tolerance."""
    x, values = rng.rows(TOKENS, WIDTH), rng.rows(37, WIDTH)
    x[:, ::7] *= np.float32(_LEAST)  # half of these count as zero
    values[:, ::11] *= np.float32(_LEAST)
    weight, exact = _weight(values, "bf16")
    table, matrix = backend.matrix([_weight(x, "f32")[0]]), backend.matrix([weight])
    got = _run(
        backend, lambda ops, ctx: ops.linear(ops.select(ctx, ops.embed(ctx, table, 1.0)), matrix), rows
    )
    bits = x.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    a = np.where(np.abs(x) < _LEAST, np.float32(0), nearest.view(np.float32))[:rows]
    w = np.where(np.abs(exact) < _LEAST, np.float32(0), exact)
    wanted = np.zeros((rows, 37), np.float32)
    for k in range(WIDTH):
        at = k ^ 1  # the odd one of a pair first; products of two bfloat16 are exact
        wanted += a[:, at, None] * w[None, :, at]
    wrong = int((got != wanted).sum())
    return f"product of bf16 with {rows} rounded rows: {wrong} of {wanted.size} differ" if wrong else ""


def _check_rows(backend: Backend, rng: _Numbers) -> str:
    x, weight = rng.rows(TOKENS, WIDTH), rng.rows(1, WIDTH)[0]
    table, vector = backend.matrix([_weight(x, "f32")[0]]), backend.vector(weight)

    def forward(ops, ctx):  # noqa: ANN001, ANN202
        y = ops.rms_norm(ops.embed(ctx, table, 1.0), vector, 1e-5)
        gate, up = ops.split(y, (WIDTH // 2, WIDTH // 2))
        return ops.select(ctx, ops.softcap(ops.glu(gate, up, "silu"), 3.0))

    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
    gate, up = y[:, : WIDTH // 2], y[:, WIDTH // 2 :]
    return _differs(
        "norm and activation", _run(backend, forward), 3 * np.tanh(gate / (1 + np.exp(-gate)) * up / 3), 1e-4
    )


def _check_attention(backend: Backend, rng: _Numbers) -> str:
    x = rng.rows(TOKENS, WIDTH)
    angles = np.outer(np.arange(TOKENS), 0.3 ** np.arange(HEAD_SIZE // 2)).astype(np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    table, rope = backend.matrix([_weight(x, "f32")[0]]), backend.rope_table(cosines, sines)

    def forward(ops, ctx):  # noqa: ANN001, ANN202
        q, k, v = ops.split(ops.embed(ctx, table, 1.0), (HEADS * HEAD_SIZE, HEAD_SIZE, HEAD_SIZE))
        q, k = ops.rope(ctx, q, rope, HEAD_SIZE), ops.rope(ctx, k, rope, HEAD_SIZE)
        return ops.select(ctx, ops.attention(ctx, q, k, v, 0, PARAMS))

    half = HEAD_SIZE // 2
    heads = x.reshape(TOKENS, HEADS + 2, HEAD_SIZE).copy()
    a, b = heads[:, :-1, :half].copy(), heads[:, :-1, half:].copy()
    heads[:, :-1, :half] = a * cosines[:, None] - b * sines[:, None]
    heads[:, :-1, half:] = b * cosines[:, None] + a * sines[:, None]
    scores = np.einsum("thd,sd->ths", heads[:, :HEADS], heads[:, HEADS]) * PARAMS.scale
    scores = np.where(np.tri(TOKENS, dtype=bool)[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    wanted = np.einsum("ths,sd->thd", weights, heads[:, HEADS + 1]).reshape(TOKENS, -1)
    return _differs("rope and attention", _run(backend, forward), wanted.astype(np.float32), 1e-4)
