"""Whole step programs: fusion, threads, instruction sets and the split into rows never change a bit."""

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from headrace import _native
from headrace.base.clock import cpu_s
from headrace.base.errors import CheckpointError, ConfigError, ShapeError
from headrace.compute.ops.api import StepLimits
from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions
from headrace.compute.ops.backends.native.fuse import PASSES
from headrace.compute.ops.backends.native.lower import lower
from headrace.compute.ops.backends.native.plan import lives, plan
from headrace.compute.ops.backends.native.record import record
from headrace.compute.ops.backends.reference import ReferenceBackend
from tests.kit.programs import LIMITS, NUM_BLOCKS, PROMPT, Tiny, check_splits
from tests.kit.steps import Rows, TinyModel, float_weight, geometry, i32, random_weight

BEST = _native.isas()[0]
VARIANTS = [(isa, threads, fused) for isa in _native.isas() for threads in (1, 2) for fused in (True, False)]
VARIANTS += [(BEST, threads, True) for threads in (3, 4)]


def native(isa=BEST, threads=2, fused=True):
    return NativeBackend(NativeOptions(isa=isa, threads=threads, fused=fused))


@pytest.fixture(scope="module", params=["pre", "sandwich"])
def model(request):
    return TinyModel(norms=request.param)


@pytest.fixture(scope="module")
def tiny(model):
    return Tiny(model, native())


def test_all_variants_give_the_same_bits_near_the_reference(model):
    table, results = list(range(10)), []
    for variant in VARIANTS:
        mine = Tiny(model, native(*variant))
        whole = mine.run([(0, 30, table)], PROMPT[:30])
        steps = [mine.run([(30 + i, 1, table)], [PROMPT[30 + i]]) for i in range(7)]
        results.append(np.concatenate([whole, *steps]))
        assert results[-1].tobytes() == results[0].tobytes(), variant
    wanted = Tiny(model, ReferenceBackend()).run([(0, 37, table)], PROMPT)
    # two layers of int8 activations
    assert np.abs(results[0] - wanted).mean() < 0.015 * np.abs(wanted).max()


def test_float_model_is_near_the_reference():
    model = TinyModel(schemes=("f32", "f16", "bf16"))
    table = list(range(10))
    got = Tiny(model, native(), "f32").run([(0, 37, table)], PROMPT)
    wanted = Tiny(model, ReferenceBackend(), "f32").run([(0, 37, table)], PROMPT)
    assert np.abs(got - wanted).max() < 2e-4 * np.abs(wanted).max()


def test_any_split_into_rows_and_chunks_gives_the_same_bits(model, tiny):
    check_splits(model, tiny, 25)


@pytest.mark.parametrize("scheme", ["q8_0", "q4_k", "f16"])
def test_a_head_makes_the_maxima_of_its_logits(scheme, tiny):
    rng, vocab = np.random.default_rng(5), 333
    weights, values = random_weight(rng, scheme, vocab, 256), np.float32(rng.standard_normal((90, 256)))
    values[1, 7] = np.nan
    for isa, threads, fused in VARIANTS:
        backend = native(isa, threads, fused)
        embed, head = backend.matrix([float_weight(values)]), backend.matrix([weights])
        kv = backend.kv_pool(geometry(block_size=96), 1)
        program = backend.compile(
            lambda ops, ctx, embed=embed, head=head: ops.linear(
                ops.select(ctx, ops.embed(ctx, embed, 1.0)), head
            ),
            StepLimits(max_tokens=90, max_rows=1, max_logits=90, table_width=1),
            kv,
        )
        for tokens in (1, 4, 5, 16, 64, 65, 90):
            out = program.run(Rows([(0, tokens, [0])], 1).context(kv))
            wanted = np.maximum.reduceat(np.nan_to_num(out, nan=np.inf), range(0, vocab, 64), axis=1)
            assert (program.maxima == wanted).all(), (isa, threads, fused, tokens)
    assert tiny.program.maxima is None  # its last operation is a soft cap


@pytest.mark.parametrize("starts", [(0, 300, 509), (509, 510, 511), (40, 511, 590)])
def test_claimed_attention_with_and_without_a_cut_gives_the_same_bits(model, starts):
    """Splits of 512 keys: only items with several of them are cut, and folded by whoever is done last."""

    def fresh(threads):
        tiny = Tiny(model, native(threads=threads), block_size=64)
        for block in range(NUM_BLOCKS):
            tiny.kv.fill(block, 0.25)
        return tiny

    rows = [(start, 3, list(range(12 * i, 12 * i + 12))) for i, start in enumerate(starts)]
    alone = fresh(1)
    wanted = np.concatenate([alone.run([row], PROMPT[3 * i : 3 * i + 3]) for i, row in enumerate(rows)])
    for threads in (2, 3, 5, 17):
        assert fresh(threads).run(rows, PROMPT[:9]).tobytes() == wanted.tobytes(), threads


def test_unused_memory_is_never_read(model):
    """Blocks outside the tables, and places of a block past its keys, may hold anything."""
    clean, dirty = Tiny(model, native()), Tiny(model, native())
    for block in range(NUM_BLOCKS):
        dirty.kv.fill(block, float("nan"))
    table = [7, 3, 11, 30]
    for start, count in ((0, 5), (5, 1), (6, 3)):
        step = ([(start, count, table)], PROMPT[start : start + count])
        got = dirty.run(*step)
        assert np.isfinite(got).all()
        assert got.tobytes() == clean.run(*step).tobytes()


def test_fusion_saves_operations_and_barriers(model):
    fused, plain = Tiny(model, native()).program.native, Tiny(model, native(fused=False)).program.native
    assert fused.num_ops < 0.75 * plain.num_ops
    assert fused.num_barriers(3) < 0.7 * plain.num_barriers(3)
    assert fused.num_barriers(3) < fused.num_barriers(0)


def test_fusion_joins_what_it_should():
    backend = native(threads=1)
    recording = record(TinyModel().forward(backend), None)
    for rewrite in PASSES:
        rewrite(recording)
    lower(recording, fused=True)
    kinds = [node.kind for node in recording.nodes]
    assert kinds.count("copy") == kinds.count("add") == kinds.count("glu") == 0
    assert kinds.count("gated_linear") == 2
    # one quantization per attention result; every other one rides on a norm or an activation
    assert kinds.count("quantize") == 2
    # the last MLP works on wanted rows only
    last = max(i for i, node in enumerate(recording.nodes) if node.kind == "attention")
    after = [n for n in recording.nodes[last + 1 :] if n.output.rows == "tokens"]
    assert {n.kind for n in after} <= {"quantize", "linear"}


def test_residual_sums_keep_their_order():
    """A product must not overtake another term of its stream; values read later stay."""
    backend, rng = native(threads=1), np.random.default_rng(0)
    x = rng.standard_normal((8, 32)).astype(np.float32)
    weights = [random_weight(rng, "f32", 32, 32) for _ in range(2)]

    def make(b):
        table, first, second = b.matrix([float_weight(x)]), b.matrix([weights[0]]), b.matrix([weights[1]])

        def forward(ops, ctx):
            base, other = ops.embed(ctx, table, 1.0), ops.embed(ctx, table, 3.0)
            late, early = ops.linear(other, second), ops.linear(other, first)
            total = ops.add(ops.add(base, early), late)
            again = ops.add(base, ops.linear(base, first))
            return ops.select(ctx, ops.add(total, ops.add(again, base)))

        return forward

    results = []
    for fused in (True, False):
        b = native(threads=2, fused=fused)
        kv = b.kv_pool(geometry(block_size=64), 1)
        results.append(np.array(b.compile(make(b), LIMITS, kv).run(Rows([(0, 8, [0])], 1).context(kv))))
    assert results[0].tobytes() == results[1].tobytes()
    backend.close()


def test_plan_keeps_living_values_apart():
    rng = np.random.default_rng(3)
    for _ in range(50):
        touches = [[int(v) for v in rng.integers(0, 12, 3)] for _ in range(20)]
        found = lives(touches, lambda v: 10 + 37 * v)
        placed = plan(found)
        for a, x in found.items():
            assert placed.offsets[a] % 64 == 0
            for b, y in found.items():
                meet = x.first <= y.last and y.first <= x.last and a != b
                p, q = placed.offsets[a], placed.offsets[b]
                apart = p >= q + y.size or q >= p + x.size
                assert not meet or apart


BAD_INPUTS = {
    "token id": {"token_ids": i32([0, 1, TinyModel.vocab])},
    "negative token id": {"token_ids": i32([0, 1, -1])},
    "block outside the pool": {"tables": i32([[NUM_BLOCKS, 0]])},
    "negative block": {"tables": i32([[-1, 0]])},
    "key length past the table": {"key_len": i32([9]), "positions": i32([6, 7, 8])},
    "positions disagree": {"positions": i32([0, 1, 3])},
    "query starts": {"query_start": i32([0, 2])},
    "row of token": {"row_of": i32([0, 0, 1])},
    "angle row": {"rope_rows": i32([0, 1, 600])},
    "logit row": {"logit_rows": i32([3])},
    "logit rows descend": {"logit_rows": i32([1, 1])},
    "lengths": {"positions": i32([0, 1])},
    "dtype": {"token_ids": np.zeros(3, np.int64)},
    "not contiguous": {"token_ids": np.zeros(6, np.int32)[::2]},
    "dimensions": {"tables": i32([0, 1])},
    "empty": {"key_len": i32([]), "query_start": i32([0]), "tables": np.zeros((0, 2), np.int32)},
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs_raise(tiny, name):
    good = Rows([(0, 3, [0, 1])], 2, [1, 2, 3]).context(tiny.kv)
    before = np.array(tiny.program.run(good))
    with pytest.raises(ShapeError):
        tiny.program.run(replace(good, **BAD_INPUTS[name]))
    assert np.array(tiny.program.run(good)).tobytes() == before.tobytes()


def test_steps_past_the_limits_raise(model, tiny):
    with pytest.raises(ShapeError, match="number of tokens is 41; allowed: 1 to 40"):
        tiny.run([(0, 41, list(range(11)))], [0] * 41)
    with pytest.raises(ShapeError, match="number of rows"):
        tiny.run([(0, 1, [r]) for r in range(7)], [0] * 7)
    with pytest.raises(ShapeError, match="another KV pool"):
        tiny.program.run(Rows([(0, 1, [0])], 1).context(tiny.backend.kv_pool(model.geometry(), 2)))


def test_bad_programs_and_weights_raise():
    backend, rng = native(threads=1), np.random.default_rng(0)
    kv = backend.kv_pool(geometry(), 1)
    table, vector = backend.matrix([float_weight(np.ones((3, 8)))]), backend.vector(np.ones(4, np.float32))
    wrong = [
        lambda ops, ctx: ops.embed(ctx, table, 1.0),
        lambda ops, ctx: ops.select(ctx, ops.rms_norm(ops.embed(ctx, table, 1.0), vector, 1e-5)),
        lambda ops, ctx: ops.select(ctx, ops.split(ops.embed(ctx, table, 1.0), (3, 4))[0]),
        lambda ops, ctx: ops.select(ctx, ops.glu(*[ops.embed(ctx, table, 1.0)] * 2, "tanh")),
        lambda ops, ctx: ops.softcap(ops.select(ctx, ops.embed(ctx, table, 1.0)), -1.0),
    ]
    for forward in wrong:
        with pytest.raises(ShapeError):
            backend.compile(forward, LIMITS, kv)
    good = random_weight(rng, "q4_0", 4, 64)
    for change in (
        {"type_name": "q9_9"},
        {"k": 96},
        {"k": 33},
        {"n": 5},
        {"order": i32([0, 1, 2, 4])},
        {"order": i32([0, 1])},
    ):
        with pytest.raises(CheckpointError):
            backend.matrix([replace(good, **change)])
    with pytest.raises(CheckpointError):
        backend.matrix([good, random_weight(rng, "q4_0", 4, 32)])
    with pytest.raises(ShapeError):
        backend.rope_table(np.ones((2, 4), np.float64), np.ones((2, 4), np.float64))
    for head_size in (4, 20, 100, 257, 264, 512):
        with pytest.raises(ShapeError, match=rf"size is {head_size}; .*multiples of 8 up to 256.*reference"):
            backend.kv_pool(geometry(head_size=head_size), 1)
        with pytest.raises(ValueError, match="head sizes"):
            _native.kv_memory("f32", (1, 16, 1, head_size, 1))
    with pytest.raises(ValueError, match="KV dtype 'int4' is unknown; use f16, f32, int8 or int16"):
        _native.kv_memory("int4", (1, 16, 1, 64, 1))
    with pytest.raises(ShapeError):
        backend.kv_pool(geometry(), 0)
    with pytest.raises(ShapeError):
        backend.kv_pool(geometry(kv_heads=1 << 28, head_size=256), 1 << 30)
    with pytest.raises(IndexError):
        kv.copy(0, 1)
    backend.close()
    with pytest.raises(ConfigError, match="closed"):
        backend.vector(np.ones(4, np.float32))
    for options in (NativeOptions(isa="sse9"), NativeOptions(isa=BEST, threads=0)):
        with pytest.raises(ConfigError):
            NativeBackend(options)


def test_blocks_are_copied_read_and_filled(model):
    tiny = Tiny(model, native())
    tiny.run([(0, 8, [5, 2])], PROMPT[:8])
    keys, values = tiny.kv.read(1, 2)
    tiny.kv.copy(2, 9)
    assert (tiny.kv.read(1, 9)[0] == keys).all()
    assert (tiny.kv.read(1, 9)[1] == values).all()
    assert tiny.run([(8, 1, [5, 9, 0])], [1]).tobytes() == tiny.run([(8, 1, [5, 2, 1])], [1]).tobytes()
    tiny.kv.fill(9, 0.5)
    assert (tiny.kv.read(0, 9)[0] == 0.5).all()
    assert (tiny.kv.read(0, 12)[1] == 0).all()


def test_many_python_threads_may_share_a_backend(model, tiny):
    table = list(range(10))
    wanted = tiny.run([(0, 20, table)], PROMPT[:20])
    others = [Tiny(model, tiny.backend) for _ in range(4)]
    results = {}

    def work(i):
        for _ in range(20):
            results[i] = others[i].run([(0, 20, table)], PROMPT[:20])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(results[i].tobytes() == wanted.tobytes() for i in range(4))


def test_an_idle_backend_uses_no_cpu(tiny):
    tiny.run([(0, 2, [0])], [1, 2])
    before, pause = cpu_s(), threading.Event()
    pause.wait(0.5)
    assert cpu_s() - before < 0.02


def test_a_forked_child_is_told(tiny):
    tiny.run([(0, 2, [0])], [1, 2])
    child = os.fork()
    if child == 0:
        try:
            tiny.run([(0, 2, [0])], [1, 2])
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
