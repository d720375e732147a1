"""Every operation of the native backend against the reference, on every instruction set that runs here."""

from types import SimpleNamespace

import numpy as np
import pytest

from headrace import _native
from headrace.compute.ops.api import KV_BITS, SHIFT_SPAN, AttentionParams, StepLimits
from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions
from headrace.compute.ops.backends.reference import ReferenceBackend
from tests.kit.steps import SCHEMES, Rows, float_weight, geometry, group_size, random_weight, run_ops

VARIANTS = [(isa, threads) for isa in _native.isas() for threads in (1, 2)]


@pytest.fixture(scope="module")
def natives():
    backends = {v: NativeBackend(NativeOptions(isa=v[0], threads=v[1])) for v in VARIANTS}
    yield backends
    for backend in backends.values():
        backend.close()


def compare(natives, make, tokens, tolerance):
    """All variants give the same bits, near the reference."""
    wanted = run_ops(ReferenceBackend(), make, tokens)
    results = {v: run_ops(backend, make, tokens) for v, backend in natives.items()}
    first = results[VARIANTS[0]]
    for variant, result in results.items():
        assert result.tobytes() == first.tobytes(), variant
    scale = np.abs(wanted).max() + 1e-9
    assert np.abs(first - wanted).max() <= tolerance * scale
    return first


def exact_rows(rng, tokens, k):
    """Rows that int8 groups of 32 hold without loss: whole numbers with 127 in each group."""
    x = rng.integers(-127, 128, (tokens, k)).astype(np.float32)
    x[:, ::32] = 127
    return x


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("n", "blocks", "tokens"), [(1, 1, 1), (17, 3, 5), (48, 2, 33)])
def test_linear(natives, scheme, n, blocks, tokens):
    rng = np.random.default_rng(n)
    k = blocks * (group_size(scheme) if group_size(scheme) > 1 else 37)
    x, weight, bias = exact_rows(rng, tokens, k), random_weight(rng, scheme, n, k), rng.standard_normal(n)

    def make(backend):
        table, matrix = backend.matrix([float_weight(x)]), backend.matrix([weight])
        handle = backend.vector(bias.astype(np.float32))
        return lambda ops, ctx: ops.linear(ops.select(ctx, ops.embed(ctx, table, 1.0)), matrix, handle)

    compare(natives, make, tokens, 2e-6)


def test_linear_bounds_the_error_of_quantized_activations(natives):
    """Each activation is off by at most half a step of its group: top / 254."""
    rng = np.random.default_rng(8)
    x, weight = rng.standard_normal((9, 256)).astype(np.float32), random_weight(rng, "q4_k", 40, 256)

    def make(backend):
        table, matrix = backend.matrix([float_weight(x)]), backend.matrix([weight])
        return lambda ops, ctx: ops.linear(ops.select(ctx, ops.embed(ctx, table, 1.0)), matrix)

    reference = ReferenceBackend()
    wanted = run_ops(reference, make, 9)
    step = np.repeat(np.abs(x.reshape(9, 8, 32)).max(-1) / 254, 32, axis=-1)
    bound = step @ np.abs(reference.matrix([weight]).array).T
    for backend in natives.values():
        assert (np.abs(run_ops(backend, make, 9) - wanted) <= bound * 1.001 + 1e-4).all()


def test_stacked_parts_keep_their_schemes_and_orders(natives):
    rng = np.random.default_rng(2)
    x = exact_rows(rng, 6, 256)
    parts = [random_weight(rng, s, n, 256) for s, n in (("q6_k", 40), ("f16", 9), ("q4_k", 33))]
    parts.append(random_weight(rng, "q8_0", 20, 256, order=rng.permutation(20).astype(np.int32)))

    def make(backend):
        table, matrix = backend.matrix([float_weight(x)]), backend.matrix(parts)

        return lambda ops, ctx: ops.linear(ops.select(ctx, ops.embed(ctx, table, 1.0)), matrix)

    compare(natives, make, 6, 2e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_embed(natives, scheme):
    rng = np.random.default_rng(1)
    weight = random_weight(rng, scheme, 21, 256)

    def make(backend):
        table = backend.matrix([weight])
        return lambda ops, ctx: ops.select(ctx, ops.embed(ctx, table, 2.5))

    compare(natives, make, 21, 1e-7)


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 7), (5, 96), (18, 129)])
def test_row_wise_operations(natives, tokens, width):
    rng = np.random.default_rng(width)
    x, y = (rng.standard_normal((tokens, width)).astype(np.float32) * 3 for _ in range(2))
    weight = rng.standard_normal(width).astype(np.float32)

    def make(backend):
        tables = [backend.matrix([float_weight(v)]) for v in (x, y)]
        vector = backend.vector(weight)

        def forward(ops, ctx):
            a, b = (ops.embed(ctx, table, 1.0) for table in tables)
            total = ops.add(ops.rms_norm(a, vector, 1e-6), ops.glu(a, b, "silu"))
            return ops.select(ctx, ops.softcap(ops.add(total, ops.glu(b, a, "gelu_tanh")), 9.0))

        return forward

    compare(natives, make, tokens, 3e-6)


@pytest.mark.parametrize("head_size", [16, 40, 64, 80, 96, 128])
@pytest.mark.parametrize("tokens", [2, 11])
def test_rope_and_head_norm(natives, head_size, tokens):
    rng = np.random.default_rng(head_size)
    heads, half = 3, head_size // 4  # half of each head is rotated
    x = rng.standard_normal((tokens, heads * head_size)).astype(np.float32)
    weight = rng.standard_normal(head_size).astype(np.float32)
    angles = rng.uniform(0, 6, (tokens, half)).astype(np.float32)

    def make(backend):
        table, vector = backend.matrix([float_weight(x)]), backend.vector(weight)
        rope = backend.rope_table(np.cos(angles), np.sin(angles))

        def forward(ops, ctx):
            y = ops.head_norm(ops.embed(ctx, table, 1.0), vector, 1e-5, head_size)
            return ops.select(ctx, ops.rope(ctx, y, rope, head_size))

        return forward

    compare(natives, make, tokens, 2e-6)


# The native kernels round the weights of a chunk to fixed point, the reference does not.
INT16_TOLERANCE = 2e-4


def attention_case(head_size, block_size, length, dtype, params, shifts=None):
    """A prompt of `length` tokens, its last third in a second step; results and the KV of the last block."""
    rng = np.random.default_rng(head_size + block_size + length)
    width = (params.heads + 2 * params.kv_heads) * head_size
    x = rng.standard_normal((length, width)).astype(np.float32)
    if shifts is not None:
        keys = slice(params.heads * head_size, (params.heads + params.kv_heads) * head_size)
        x[:, keys] += shifts[np.arange(length) // SHIFT_SPAN].reshape(length, -1)
    blocks = -(-length // block_size)
    table = list(rng.permutation(blocks + 1)[:blocks])
    cut = max(1, length * 2 // 3)

    def run(backend):
        kv = backend.kv_pool(geometry(1, params.kv_heads, head_size, block_size, dtype), blocks + 1)
        if shifts is not None and dtype == "int8":
            kv.shift_keys(0, shifts)
        embed = backend.matrix([float_weight(x)])
        sizes = (params.heads * head_size, params.kv_heads * head_size, params.kv_heads * head_size)

        def forward(ops, ctx):
            q, k, v = ops.split(ops.embed(ctx, embed, 1.0), sizes)
            return ops.select(ctx, ops.attention(ctx, q, k, v, 0, params))

        bounds = StepLimits(max_tokens=length, max_rows=1, max_logits=length, table_width=blocks)
        program, parts = backend.compile(forward, bounds, kv), []
        for begin, end in ((0, cut), (cut, length)):
            if begin < end:
                step = Rows([(begin, end - begin, table)], blocks, ids=list(range(begin, end)))
                parts.append(np.array(program.run(step.context(kv))))
        return np.concatenate(parts), kv.read(0, table[-1])

    return run


@pytest.mark.parametrize("head_size", [16, 40, 64, 80, 96, 128])
@pytest.mark.parametrize("block_size", [1, 4, 16, 256])
def test_attention_at_block_edges(natives, head_size, block_size):
    """AT-4."""
    kv_heads = 2 if block_size < 256 else 1  # a second one lies behind the first alike, and takes as long
    heads = 3 * kv_heads
    params = AttentionParams(heads=heads, kv_heads=kv_heads, head_size=head_size, scale=head_size**-0.5)
    edge = block_size if block_size > 4 else 3 * block_size
    for length in {max(1, edge - 1), edge, edge + 1}:
        for dtype in KV_BITS:
            run = attention_case(head_size, block_size, length, dtype, params)
            check_attention(natives, run, INT16_TOLERANCE if dtype == "int16" else 2e-5)


@pytest.mark.parametrize(("softcap", "window"), [(None, 5), (15.0, None), (4.0, 1), (None, 17)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (8, 1), (9, 3)])
def test_attention_kinds(natives, heads, kv_heads, softcap, window):
    params = AttentionParams(
        heads=heads, kv_heads=kv_heads, head_size=32, scale=0.3, softcap=softcap, window=window
    )
    check_attention(natives, attention_case(32, 16, 45, "f16", params))
    check_attention(natives, attention_case(32, 16, 45, "int16", params), INT16_TOLERANCE)


def test_shifted_keys_are_as_precise_as_keys_without_a_bias(natives):
    """A constant of all keys, twenty times their spread, does not cost codes their precision."""
    params = AttentionParams(heads=6, kv_heads=2, head_size=64, scale=0.125)
    shifts = 20 * np.random.default_rng(3).standard_normal((2, 2, 64)).astype(np.float32)
    run = attention_case(64, 16, 600, "int8", params, shifts)
    check_attention(natives, run, 3e-4)
    exact, _ = attention_case(64, 16, 600, "f32", params, shifts)(ReferenceBackend())
    coarse, _ = attention_case(64, 16, 600, "int8", params)(ReferenceBackend())
    plain, _ = attention_case(64, 16, 600, "f32", params)(ReferenceBackend())
    error = np.abs(run(ReferenceBackend())[0] - exact).mean()
    assert error < 1.5 * np.abs(coarse - plain).mean()


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-38, 1e30, np.nan, np.inf])
@pytest.mark.parametrize("block_size", [5, 32])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_filled_and_copied_blocks_of_codes_read_alike(natives, dtype, block_size, value):
    shape = geometry(1, 2, 40, block_size, dtype)
    pools = [ReferenceBackend().kv_pool(shape, 3), *(b.kv_pool(shape, 3) for b in natives.values())]
    for pool in pools:
        pool.fill(1, value)
        pool.copy(1, 2)
    wanted = pools[0].read(0, 2)
    for pool in pools:
        for mine, theirs in zip(pool.read(0, 2), wanted, strict=True):
            assert np.array_equal(mine, theirs, equal_nan=True)
        assert (pool.read(0, 0)[0] == 0).all()
    if np.isfinite(value):
        assert np.abs(wanted[0] - np.float32(value)).max() <= abs(value) / 127 + 1e-30
    else:
        assert np.isnan(wanted).all()


def check_attention(natives, run, tolerance=2e-5):
    wanted, (keys, values) = run(ReferenceBackend())
    first = None
    for variant, backend in natives.items():
        got, (own_keys, own_values) = run(backend)
        first = got if first is None else first
        assert got.tobytes() == first.tobytes(), variant
        assert (own_keys == keys).all()
        assert (own_values == values).all()
    assert np.abs(first - wanted).max() < tolerance


@pytest.mark.parametrize("lacks", ["temperature", "seen.start", "allowed.masks", "maxima"])
def test_a_batch_without_an_array_is_refused_by_its_name(lacks):
    """An attribute that is missed within a cast that must not throw ended the process."""
    i32 = np.zeros(1, np.int32)
    f32 = np.ones(1, np.float32)
    seen = SimpleNamespace(start=np.zeros(2, np.int32), ids=i32[:0], counts=i32[:0])
    allowed = SimpleNamespace(row=i32, masks=np.full((1, 2), 0xFFFFFFFF, np.uint32))
    batch = SimpleNamespace(
        **dict.fromkeys(("positions", "top_k"), i32),
        **dict.fromkeys(("temperature", "top_p", "min_p"), f32),
        num_logprobs=i32 - 1,
        seeds=np.zeros(1, np.uint64),
        penalties=np.ones((1, 3), np.float32),
        bias=None,
        maxima=None,
        seen=seen,
        allowed=allowed,
    )
    runtime = _native.Runtime(_native.isas()[0], 1, 0, False)
    logits = np.zeros((1, 40), np.float32)
    runtime.sample(logits, batch)
    *outer, name = lacks.split(".")
    delattr(getattr(batch, outer[0]) if outer else batch, name)
    with pytest.raises(AttributeError, match=name):
        runtime.sample(logits, batch)
    with pytest.raises(AttributeError, match=name):
        _native.Sampler(batch, 1, 40)


@pytest.mark.parametrize("mode", ["map", "read", "auto"])
@pytest.mark.parametrize("size", [70_000, 1 << 40])
def test_a_file_that_ends_early_is_refused_before_memory_is_taken(size, mode, tmp_path):
    """Pages behind the end of a mapped file end the process where the kernel cannot fill them in advance."""
    runtime = _native.Runtime(_native.isas()[0], 1, 0, False)
    path = tmp_path / "weights"
    path.write_bytes(bytes(5000))
    sums = np.zeros(-(-size // _native.FILE_CHUNK), np.uint64)
    words = f"after 5000 bytes; {size} from byte 0 on"
    with path.open("rb") as file, pytest.raises(RuntimeError, match=words):
        runtime.load_file(file.fileno(), 0, size, sums, mode)
