"""What a forward pass keeps and is given, on both backends."""

import numpy as np
import pytest

from headrace.base.errors import ShapeError
from headrace.compute.models.decoder import Taps, make_forward
from headrace.compute.models.load import load_model
from headrace.compute.ops.api import ForwardContext, KVGeometry, StepLimits, Weight
from headrace.compute.weights.checkpoint import open_checkpoint
from tests.kit.engine import make_backend, tiny_llama

LIMITS = StepLimits(max_tokens=32, max_rows=4, max_logits=8, table_width=4)
BACKENDS = (("reference", 1), ("native", 1), ("native", 2))


def context(pool, ids, *, given=(), wanted=None):
    count = len(ids)
    positions = np.arange(count, dtype=np.int32)
    return ForwardContext(
        token_ids=np.array(ids, np.int32),
        positions=positions,
        row_of=np.zeros(count, np.int32),
        query_start=np.array([0, count], np.int32),
        key_len=np.array([count], np.int32),
        tables=np.arange(4, dtype=np.int32)[None],
        rope_rows=positions,
        logit_rows=np.array([count - 1] if wanted is None else wanted, np.int32),
        kv=pool,
        given=given,
    )


def model_on(backend):
    model = load_model(open_checkpoint(tiny_llama()), backend, 64)
    return model, backend.kv_pool(model.geometry(16, "f32"), 4)


@pytest.mark.parametrize(("name", "threads"), BACKENDS)
def test_taps_change_no_logit_and_are_the_states(name, threads):
    backend = make_backend(name, threads)
    model, pool = model_on(backend)
    taps = Taps(inputs_of=(0, 1, 2), normed=True, wanted=True)
    tapped = backend.compile(make_forward(model.spec, model.weights, taps), LIMITS, pool)
    plain = backend.compile(model.forward, LIMITS, pool)
    hidden = backend.compile(model.hidden, LIMITS, pool)
    for ids, wanted in (([5, 9, 3, 70, 4], [1, 4]), ([7], [0]), (list(range(3, 30)), [26])):
        step = context(pool, ids, wanted=wanted)
        logits = tapped.run(step).copy()
        before, middle, after, normed, chosen = (values.copy() for values in tapped.kept)
        assert np.array_equal(logits, plain.run(step))
        assert not plain.kept
        assert np.array_equal(chosen, hidden.run(step))
        assert np.array_equal(chosen, normed[wanted])
        assert before.shape == middle.shape == after.shape == (len(ids), model.spec.width)
        embed = backend.compile(
            lambda ops, ctx: ops.select(ctx, ops.embed(ctx, model.weights.embed, 1.0)), LIMITS, pool
        )
        assert np.array_equal(before[wanted], embed.run(step))
        norm = np.float32(1) / np.sqrt(np.square(after, dtype=np.float64).mean(1) + model.spec.norm_eps)
        shares = normed / (after * norm[:, None])
        assert np.allclose(shares, shares[:1], rtol=1e-4)
        assert not np.allclose(middle, after, rtol=1e-2)


@pytest.mark.parametrize(("name", "threads"), BACKENDS)
def test_a_program_takes_activations_and_gives_others(name, threads):
    backend, rng = make_backend(name, threads), np.random.default_rng(0)
    pool = backend.kv_pool(KVGeometry(layers=1, kv_heads=1, head_size=16, block_size=16, dtype="f32"), 4)
    values = rng.standard_normal((48, 32)).astype(np.float32)
    weight = Weight(name="w", type_name="f32", n=48, k=32, data=values.view(np.uint8).reshape(48, -1))
    matrix = backend.matrix([weight])

    def forward(ops, ctx):
        x, y = ops.given(ctx, 0, 32), ops.given(ctx, 1, 32)
        total = ops.add(x, y)
        ops.keep(total)
        return ops.linear(ops.select(ctx, total), matrix)

    program = backend.compile(forward, LIMITS, pool)
    for rows in (1, 3, 17):
        x, y = (rng.standard_normal((rows, 32)).astype(np.float32) for _ in range(2))
        out = program.run(context(pool, [0] * rows, given=(x, y)))
        assert np.array_equal(program.kept[0], x + y)
        assert np.allclose(out[0], values @ (x + y)[-1], atol=1e-4)
    for wrong in ((x,), (x, y[:, :16]), (x[:2], y)):
        with pytest.raises(ShapeError):
            program.run(context(pool, [0] * 17, given=wrong))
