"""What a step computes, against numbers worked out by hand."""

import random

import numpy as np

from headrace.base.specs import AttentionSpec, LayerSpec, ModelSpec, RopeSpec
from headrace.compute.runner.work import Work
from tests.kit.engine import Drive, random_requests, rig
from tests.kit.steps import Rows


def spec(*windows):
    layers = tuple(
        LayerSpec(
            attention=AttentionSpec(
                heads=4, kv_heads=2, head_size=8, scale=1.0, window=window, rope=RopeSpec(kind="none")
            ),
            mlp_width=30,
        )
        for window in windows
    )
    return ModelSpec(family="x", vocab_size=100, width=20, layers=layers, norm_eps=1e-5, max_length=64)


def test_matrices_and_attention_by_hand():
    # One layer: q 20 x 32, k and v 20 x 16 each, o 32 x 20, gate, up and down 20 x 30 each.
    weights = 640 + 2 * 320 + 640 + 3 * 600
    work = Work.of(spec(None))
    assert (work.per_token, work.per_logits) == (2 * weights, 2 * 20 * 100)
    # A decoding row at position 9 sees 10 keys; a chunk at 3 to 5 sees 4, 5 and 6; two rows want logits.
    context = Rows([(9, 1, [0]), (3, 3, [1])], 1, logits=[0, 3]).context(None)
    # Per key and query: 4 heads of 8 columns, once for the score and once for the value, two operations each.
    assert work.operations(context, 16) == 4 * 2 * weights + 2 * 4000 + (10 + 4 + 5 + 6) * 4 * 32


def test_rows_of_one_token_each_need_no_look_at_positions():
    work = Work.of(spec(None))
    context = Rows([(9, 1, [0]), (3, 1, [1])], 1).context(None)
    assert work.operations(context, 14) == 2 * work.per_token + 2 * work.per_logits + (10 + 4) * 4 * 32


def test_a_window_bounds_what_is_seen():
    context = Rows([(9, 1, [0]), (3, 3, [1])], 1, logits=[]).context(None)
    full, narrow = Work.of(spec(None)), Work.of(spec(5))
    assert full.operations(context, 16) - narrow.operations(context, 16) == (5 + 0 + 0 + 1) * 4 * 32
    both = Work.of(spec(None, 5))
    assert both.operations(context, 16) == full.operations(context, 16) + narrow.operations(context, 16)


def test_steps_of_an_engine_are_counted_in_both_ways_of_running_them():
    core = rig("reference").core(slots=2)
    seen = []
    plain = core.runner.run

    def run(plan):
        result = plain(plan)
        seen.append((plan, result.operations))
        return result

    core.runner.run = run

    requests = random_requests(random.Random(3), 40)
    Drive(core).run(requests)
    work = Work.of(rig("reference").checkpoint.spec)
    for plan, operations in seen:
        starts = np.concatenate([np.arange(r.start, r.start + r.count) for r in plan.rows])
        least = work.per_token * len(starts) + work.attention[0][1] * int((starts + 1).sum())
        logits = (operations - least) / work.per_logits
        assert logits == int(logits)
        assert 0 <= logits <= len(starts)
