"""Passes, inputs, draws and drafts of the runner, without a model where none is needed."""

from types import SimpleNamespace

import numpy as np
import pytest

from headrace.base.request import Request, SamplingParams
from headrace.base.step import BlockMove, MoveKind, Row, SlotBegin, StepPlan, Wants
from headrace.compute.ops.api import KVGeometry
from headrace.compute.ops.backends.reference import ReferenceBackend
from headrace.compute.runner.inputs import Inputs, logit_rows
from headrace.compute.runner.passes import Piece, passes
from headrace.compute.runner.runner import Runner, RunnerParts
from headrace.compute.runner.state import DeviceState
from tests.kit.drafts import scripted

VOCAB = 16


def row(slot, start, count, **more) -> Row:
    return Row(slot=slot, lease=slot, start=start, count=count, **more)


def test_ordinary_rows_make_one_pass():
    rows = [row(0, 5, 1), row(1, 0, 7, sample=False), row(2, 3, 4, num_drafts=2)]
    (only,) = passes(rows, 4)
    assert [(p.row, p.start, p.count, p.draws) for p in only] == [(0, 5, 1, 1), (1, 0, 7, 0), (2, 3, 4, 3)]


@pytest.mark.parametrize("max_logits", [3, 4, 5, 16, 100])
def test_reporting_rows_are_cut_to_the_bound_and_stay_whole_in_sum(max_logits):
    rows = [
        row(0, 5, 1),
        row(1, 10, 13, wants=Wants.PROMPT_LOGPROBS),
        row(2, 0, 9, sample=False, wants=Wants.PROMPT_LOGPROBS),
        row(3, 4, 6, num_drafts=2, wants=Wants.PROMPT_LOGPROBS),
    ]
    cut = passes(rows, max_logits)
    assert all(sum(p.logits for p in one) <= max_logits for one in cut)
    for i, whole in enumerate(rows):
        mine = [p for one in cut for p in one if p.row == i]
        assert sum(p.count for p in mine) == whole.count
        assert [p.start for p in mine] == [
            whole.start + sum(q.count for q in mine[:j]) for j in range(len(mine))
        ]
        assert all(sum(p.row == i for p in one) <= 1 for one in cut)
        assert [p.draws for p in mine[:-1]] == [0] * (len(mine) - 1)
        assert mine[-1].draws == (whole.num_drafts + 1 if whole.sample else 0)


def test_inputs_of_a_mixed_step():
    state = DeviceState(4, 32, 8, VOCAB)
    state.tokens[:] = np.arange(4)[:, None] * 100 + np.arange(state.tokens.shape[1])
    state.tables[:] = np.arange(4)[:, None] * 10 + np.arange(8)
    state.num_blocks[:] = [2, 0, 3, 1]
    pool = SimpleNamespace()
    ctx = Inputs(state, pool, 16).gather([Piece(0, 2, 9, 1, 1, False), Piece(1, 0, 3, 4, 2, False)])
    assert ctx.token_ids.tolist() == [209, 3, 4, 5, 6]
    assert ctx.positions.tolist() == [9, 3, 4, 5, 6]
    assert ctx.row_of.tolist() == [0, 1, 1, 1, 1]
    assert ctx.query_start.tolist() == [0, 1, 5]
    assert ctx.key_len.tolist() == [10, 7]
    assert ctx.tables.tolist() == [[20, 21, 22], [0, 1, 2]]
    assert ctx.logit_rows.tolist() == [0, 3, 4]
    assert ctx.rope_rows.tolist() == ctx.positions.tolist()
    for values in (
        ctx.token_ids,
        ctx.positions,
        ctx.row_of,
        ctx.query_start,
        ctx.key_len,
        ctx.tables,
        ctx.logit_rows,
    ):
        assert values.dtype == np.int32
        assert values.flags.c_contiguous


def test_a_row_that_can_never_fit_a_pass_is_no_endless_loop():
    with pytest.raises(ValueError, match="3 drafts"):
        make_runner(Counting(), max_drafts=3, max_logits=3)


def test_rows_that_do_not_draw_have_no_logits():
    pieces = [Piece(0, 0, 0, 3, 0, False), Piece(1, 1, 0, 2, 1, False)]
    assert logit_rows(pieces, np.array([0, 3, 5], np.int32)).tolist() == [4]


class Counting:
    """A program whose likeliest next token is (token + position) mod V; it notes the order of events."""

    maxima = None

    def __init__(self, nan_token=None):
        self.nan_token = nan_token
        self.events = []

    def run(self, ctx):
        self.events.append(("run", len(ctx.token_ids)))
        out = np.zeros((len(ctx.logit_rows), VOCAB), np.float32)
        for s, t in enumerate(ctx.logit_rows):
            token = int(ctx.token_ids[t])
            out[s, (token + int(ctx.positions[t])) % VOCAB] = 5.0
            if token == self.nan_token:
                out[s, 0] = np.nan
        return out


class Pool:
    geometry = KVGeometry(layers=1, kv_heads=1, head_size=2, block_size=4, dtype="f32")
    num_blocks = 8

    def __init__(self, events):
        self.events = events

    def copy(self, src, dst):
        self.events.append(("copy", src, dst))

    def fill(self, block, value):
        self.events.append(("fill", block, value))


def make_runner(program, **more) -> Runner:
    max_drafts = more.get("max_drafts", 0)
    return Runner(
        RunnerParts(
            backend=ReferenceBackend(),
            program=program,
            pool=Pool(program.events),
            state=DeviceState(4, 40, 10, VOCAB, max_drafts),
            max_tokens=64,
            **{"max_logits": 8, **more},
        )
    )


def begin(slot, ids, prompt=None, **sampling) -> SlotBegin:
    params = SamplingParams(**{"temperature": 0.0, "seed": 0, **sampling})
    request = Request(request_id=f"r{slot}", prompt_ids=tuple(ids[:prompt]), sampling=params)
    return SlotBegin(slot=slot, lease=slot, request=request, token_ids=tuple(ids), blocks=(slot, 5, 6))


def truth(ids, count):
    out = list(ids)
    for _ in range(count):
        out.append((out[-1] + len(out) - 1) % VOCAB)
    return out[len(ids) :]


def test_a_step_ends_begins_moves_then_runs():
    program = Counting()
    runner = make_runner(program)
    runner.run(StepPlan(step=1, begins=(begin(0, [1, 2]),), rows=(row(0, 0, 2),)))
    program.events.clear()
    moves = (BlockMove(kind=MoveKind.COPY, src=1, dst=2), BlockMove(kind=MoveKind.ZERO, src=None, dst=3))
    plan = StepPlan(step=2, ends=(0,), begins=(begin(0, [3]),), moves=moves, rows=(row(0, 0, 1),))
    runner.run(plan)
    assert program.events == [("copy", 1, 2), ("fill", 3, 0.0), ("run", 1)]


def test_chunks_draw_at_the_end_only_and_decoding_goes_on():
    runner = make_runner(Counting())
    ids = [3, 1, 4, 1, 5]
    first = runner.run(StepPlan(step=1, begins=(begin(0, ids),), rows=(row(0, 0, 3, sample=False),)))
    assert first.rows[0].tokens == ()
    got = list(runner.run(StepPlan(step=2, rows=(row(0, 3, 2),))).rows[0].tokens)
    for step in range(4):
        got += runner.run(StepPlan(step=3 + step, rows=(row(0, 5 + step, 1),))).rows[0].tokens
    assert got == truth(ids, 5)


@pytest.mark.parametrize("wrong_at", [0, 1, 2, 9])
def test_drafts_are_kept_up_to_the_first_wrong_one(wrong_at):
    ids = [3, 1]

    def propose(known):
        drafts = truth(known, 3)
        if wrong_at < 3:
            drafts[wrong_at] = (drafts[wrong_at] + 1) % VOCAB
        return drafts

    runner = make_runner(Counting(), drafting=scripted(propose), max_drafts=3)
    result = runner.run(
        StepPlan(step=1, begins=(begin(0, ids, logprobs=1),), rows=(row(0, 0, 2, max_drafts=9),))
    )
    known = ids + list(result.rows[0].tokens)
    assert result.rows[0].num_drafts == 3
    result = runner.run(StepPlan(step=2, rows=(row(0, 2, 4, num_drafts=3),)))
    assert list(result.rows[0].tokens) == truth(known, min(wrong_at, 3) + 1)
    assert len(result.rows[0].logprobs) == len(result.rows[0].tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_drafted_and_plain_runs_draw_the_same_tokens(temperature):
    sampling = {"temperature": temperature, "seed": 9, "frequency_penalty": 1.5, "min_tokens": 4}

    def run(propose, max_drafts):
        drafting = None if propose is None else scripted(propose)
        runner = make_runner(Counting(), drafting=drafting, max_drafts=max_drafts)
        ids, step = [3, 1], 0
        first = row(0, 0, 2, max_drafts=max_drafts)
        result = runner.run(StepPlan(step=0, begins=(begin(0, ids, **sampling),), rows=(first,))).rows[0]
        ids += result.tokens
        while len(ids) < 24:
            step += 1
            drafts = result.num_drafts
            again = row(0, len(ids) - 1, 1 + drafts, num_drafts=drafts, max_drafts=max_drafts)
            result = runner.run(StepPlan(step=step, rows=(again,))).rows[0]
            assert result.num_judged >= result.num_agreed == len(result.tokens) - 1 or drafts == 0
            ids += result.tokens
        return ids[:24]

    assert run(lambda known: truth(known, 2), 2) == run(None, 0)


def test_an_error_after_accepted_drafts_is_that_of_the_next_row():
    """Without drafts the tokens before it come first, and so they do with drafts."""
    ids = [3, 1]
    right = truth(ids, 6)
    bad = right[4]
    assert bad not in (*ids, *right[:4])

    def run(drafting, max_drafts):
        runner = make_runner(Counting(nan_token=bad), drafting=drafting, max_drafts=max_drafts)
        known, start, step, drafts = list(ids), 0, 0, 0
        while True:
            count = len(known) - start + drafts
            here = row(0, start, count, num_drafts=drafts, max_drafts=max_drafts)
            begins = () if step else (begin(0, ids),)
            (result,) = runner.run(StepPlan(step=step, begins=begins, rows=(here,))).rows
            if result.error is not None:
                return known, result.error
            known += result.tokens
            start, step, drafts = len(known) - 1, step + 1, result.num_drafts

    assert run(scripted(lambda known: truth(known, 4)), 4) == run(None, 0)


def test_a_row_cannot_check_more_drafts_than_its_slot_holds():
    runner = make_runner(Counting(), drafting=scripted(lambda known: [1, 2]), max_drafts=3)
    start = StepPlan(step=1, begins=(begin(0, [3, 1]),), rows=(row(0, 0, 2, max_drafts=3),))
    assert runner.run(start).rows[0].num_drafts == 2
    with pytest.raises(ValueError, match="slot 0 is to check 3 drafts and holds 2"):
        runner.run(StepPlan(step=2, rows=(row(0, 2, 4, num_drafts=3),)))


def test_drafts_that_no_row_checks_are_compared_and_the_step_stays_plain():
    """SP-6: nothing but the proposer's own time is added to a step that checks no drafts."""
    seen = []

    def propose(known):
        seen.append(list(known))
        return [*truth(known, 1), (truth(known, 2)[1] + 1) % VOCAB]

    runner = make_runner(Counting(), drafting=scripted(propose), max_drafts=3)
    ids = [3, 1]
    ids += runner.run(StepPlan(step=1, begins=(begin(0, ids),), rows=(row(0, 0, 2),))).rows[0].tokens
    for step, wanted in enumerate((0, 3, 0, 0, 3, 1)):  # asked for at times: then all tokens are known
        short = SimpleNamespace(count=0)
        finish = runner._decode.finish
        runner._decode.finish = lambda *a, f=finish, s=short: (setattr(s, "count", 1), f(*a))[1]
        plan = StepPlan(step=step, rows=(row(0, len(ids) - 1, 1, max_drafts=wanted),))
        (result,) = runner.run(plan).rows
        runner._decode.finish = finish
        assert short.count == 1
        held = bool(step) and bool((0, 3, 0, 0, 3, 1)[step - 1])
        assert (result.num_judged, result.num_agreed) == (held, held)
        assert result.num_drafts == min(wanted, 2)
        ids += result.tokens
    assert ids == [3, 1, *truth([3, 1], 7)]
    assert seen == [ids[:5], ids[:8], ids[:9]]


def test_broken_logits_end_their_row_only():
    runner = make_runner(Counting(nan_token=7))
    plan = StepPlan(step=1, begins=(begin(0, [7]), begin(1, [2])), rows=(row(0, 0, 1), row(1, 0, 1)))
    bad, good = runner.run(plan).rows
    assert "NaN" in bad.error
    assert bad.tokens == ()
    assert good.error is None
    assert list(good.tokens) == truth([2], 1)


def test_prompt_logprobs_cover_the_prompt_and_not_the_output():
    ids = list(range(12)) + list(range(8))
    runner = make_runner(Counting())
    start = begin(0, ids, prompt=20, prompt_logprobs=2)
    rows = (row(0, 0, 20, wants=Wants.PROMPT_LOGPROBS),)
    result = runner.run(StepPlan(step=1, begins=(start,), rows=rows)).rows[0]
    assert [e.token_id for e in result.prompt_logprobs] == ids[1:]
    assert len(result.tokens) == 1
    assert all(len(e.top_ids) == 2 for e in result.prompt_logprobs)
    # A preempted sequence comes back with output; its positions are not the prompt's.
    runner.run(StepPlan(step=2, ends=(0,), begins=(begin(1, [1]),), rows=(row(1, 0, 1),)))
    back = begin(0, ids, prompt=12, prompt_logprobs=0)
    result = runner.run(StepPlan(step=3, begins=(back,), rows=rows)).rows[0]
    assert [e.token_id for e in result.prompt_logprobs] == ids[1:12]


@pytest.mark.parametrize("max_logits", [1, 2, 3, 5, 16])
def test_broken_logits_in_a_prompt_leave_what_was_before_them(max_logits):
    """The same entries whether the prompt comes in one pass or in many."""
    ids = [1, 2, 3, 4, 7, 5, 6, 7, 8]
    start = begin(0, ids, prompt=9, prompt_logprobs=1)
    rows = (row(0, 0, 9, wants=Wants.PROMPT_LOGPROBS),)
    runner = make_runner(Counting(nan_token=7), max_logits=max_logits)
    result = runner.run(StepPlan(step=1, begins=(start,), rows=rows)).rows[0]
    assert "NaN" in result.error
    assert [e.token_id for e in result.prompt_logprobs] == ids[1:5]


def test_rows_change_their_block_table():
    state = DeviceState(2, 40, 10, VOCAB)
    state.begin(begin(1, [1, 2]))
    state.update(row(1, 0, 2, swapped=((1, 9),), new_blocks=(3, 4)))
    assert state.tables[1, : state.num_blocks[1]].tolist() == [1, 9, 6, 3, 4]
    state.update(row(1, 2, 1, new_blocks=(8,)))
    assert state.tables[1, : state.num_blocks[1]].tolist() == [1, 9, 6, 3, 4, 8]
    assert not state.tables[0].any()


def test_a_row_of_another_lease_is_refused():
    runner = make_runner(Counting())
    runner.run(StepPlan(step=1, begins=(begin(0, [1]),), rows=(row(0, 0, 1),)))
    with pytest.raises(ValueError, match="lease"):
        runner.run(StepPlan(step=2, rows=(Row(slot=0, lease=9, start=1, count=1),)))
    with pytest.raises(ValueError, match="still in use"):
        runner.run(StepPlan(step=3, begins=(begin(0, [1]),)))
    move = BlockMove(kind=MoveKind.LOAD, src=b"key", dst=1, store="disk")
    with pytest.raises(ValueError, match="store"):
        runner.run(StepPlan(step=4, moves=(move,)))
