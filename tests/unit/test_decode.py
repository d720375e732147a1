"""Steps that only decode: the short way gives what the general way gives, whoever comes, goes or breaks."""

import random
from dataclasses import replace

import numpy as np
import pytest

from headrace.base.step import StepPlan
from headrace.compute.runner import decode
from tests.unit.test_runner import VOCAB, Counting, begin, make_runner, row, truth


def general(program):
    """A runner that never takes the short way: its angles could depend on the length."""
    return make_runner(program, rope_rows=lambda slot, positions, length: positions)


class Noting(Counting):
    """Keeps the inputs of every pass."""

    def run(self, ctx):
        tables = [ctx.tables[i, : -(-int(n) // 4)].tolist() for i, n in enumerate(ctx.key_len)]
        arrays = (ctx.token_ids, ctx.positions, ctx.key_len, ctx.query_start, ctx.rope_rows, ctx.logit_rows)
        self.events.append((tables, *(a.tolist() for a in arrays)))
        return super().run(ctx)


class Spy:
    """Counts the steps that took the short way."""

    def __init__(self, subject):
        self.count, self._finish = 0, subject.finish
        subject.finish = self.finish

    def finish(self, rows, logits, maxima):
        self.count += 1
        return self._finish(rows, logits, maxima)


def schedule(seed, steps=60):
    """Plans in which slots begin, decode, pause and end, and get blocks as they need them."""
    rng = random.Random(seed)
    lengths: dict[int, int] = {}
    leases: dict[int, int] = {}
    step, lease = 0, 0
    while step < steps:
        step += 1
        ends, begins, rows = [], [], []
        if rng.random() < 0.2 and lengths:
            slot = rng.choice(list(lengths))
            del lengths[slot]
            ends.append(slot)
        free = [s for s in range(4) if s not in lengths]
        if free and (not lengths or rng.random() < 0.3):
            slot, lease = rng.choice(free), lease + 1
            ids = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
            sampling = {"temperature": rng.choice([0.0, 2.0]), "seed": rng.randrange(9)}
            if rng.random() < 0.2:
                sampling |= rng.choice([{"logprobs": 2}, {"frequency_penalty": 1.0}])
            start = begin(slot, ids, **sampling)
            begins.append(type(start)(**{f: getattr(start, f) for f in start.__slots__} | {"lease": lease}))
            leases[slot], lengths[slot] = lease, len(ids)
            rows.append((slot, 0, len(ids), 3))
        for slot, length in lengths.items():
            if all(slot != r[0] for r in rows) and length < 36 and rng.random() < 0.95:
                rows.append((slot, length, 1, -(-length // 4)))
                lengths[slot] += 1
        made = []
        for slot, start, count, held in rows:
            needed = -(-(start + count) // 4)
            fresh = tuple(rng.randrange(99) for _ in range(max(0, needed - max(held, 3))))
            plain = row(slot, start, count, new_blocks=fresh)
            plain.lease = leases[slot]
            made.append(plain)
        yield StepPlan(step=step, ends=tuple(ends), begins=tuple(begins), rows=tuple(made))


def with_repeats(plans):
    """The plans, as a planner gives them that says which rows repeat those of the step before."""
    before = None
    for plan in plans:
        moved = [(r.lease, r.start + 1, True) for r in before.rows if r.count == 1] if before else []
        rows = [(r.lease, r.start, r.count == 1) for r in plan.rows]
        is_same = rows == moved and len(moved) == len(before.rows) and not (plan.ends or plan.begins)
        changed = tuple(i for i, r in enumerate(plan.rows) if r.new_blocks)
        before = plan
        yield replace(plan, repeats=changed if is_same else None)


class Unseen:
    """Stands for a row that nobody needs to look at."""

    def __getattr__(self, name):
        raise AssertionError(f"somebody looks at {name} of a row that repeats")


def hide(plan):
    """The plan, without the rows that bring nothing new."""
    rows = [each if i in plan.repeats else Unseen() for i, each in enumerate(plan.rows)]
    return replace(plan, rows=tuple(rows))


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_repeat_need_not_be_looked_at(seed):
    told, untold = Noting(), Noting()
    runners = make_runner(told), general(untold)
    repeated = 0
    for plan in with_repeats(schedule(seed)):
        is_short = plan.repeats is not None and runners[0]._decode._places
        results = [
            runners[0].run(hide(plan) if is_short else plan),
            runners[1].run(replace(plan, repeats=None)),
        ]
        assert results[0].rows == results[1].rows
        assert results[0].bytes_read == results[1].bytes_read
        repeated += plan.repeats is not None
    assert told.events == untold.events
    assert repeated > 2
    for runner in runners:
        runner._decode.forget()
    assert np.array_equal(runners[0]._state.tokens, runners[1]._state.tokens)


def test_rows_that_cannot_be_those_of_the_step_before_are_refused():
    runner = make_runner(Counting())
    begins = (begin(0, [2]), begin(1, [3]))
    runner.run(StepPlan(step=1, begins=begins, rows=(row(0, 0, 1), row(1, 0, 1))))
    with pytest.raises(ValueError, match="1 rows cannot repeat those of 2"):
        runner.run(StepPlan(step=2, rows=(row(0, 1, 1),), repeats=()))


@pytest.mark.parametrize("held", [1, 3, 64])
@pytest.mark.parametrize("seed", range(12))
def test_the_short_way_gives_what_the_general_way_gives(seed, held, monkeypatch):
    monkeypatch.setattr(decode, "MAX_HELD", held)
    short, long = Noting(), Noting()
    runners = make_runner(short), general(long)
    drawn = [Spy(runner._decode) for runner in runners]
    for plan in schedule(seed):
        results = [runner.run(plan) for runner in runners]
        assert results[0].rows == results[1].rows
        assert results[0].bytes_read == results[1].bytes_read
    assert short.events == long.events
    assert drawn[0].count > 2
    assert drawn[1].count == 0
    states = [runner._state for runner in runners]
    runners[0]._decode.forget()
    assert np.array_equal(states[0].tokens, states[1].tokens)
    assert np.array_equal(states[0].num_tokens, states[1].num_tokens)


def test_a_row_that_breaks_amid_decoding_ends_alone():
    runner = make_runner(Counting(nan_token=6))
    good, bad = [2], [3]
    begins = (begin(0, good), begin(1, bad))
    for start in range(3):
        plan = StepPlan(step=start + 1, begins=begins, rows=(row(0, start, 1), row(1, start, 1)))
        begins = ()
        for known, result in zip((good, bad), runner.run(plan).rows, strict=True):
            known.extend(result.tokens)
    assert bad == [3, 3, 4, 6]
    results = runner.run(StepPlan(step=4, rows=(row(0, 3, 1), row(1, 3, 1)))).rows
    assert results[1].tokens == ()
    assert "NaN" in results[1].error
    good += results[0].tokens
    good += runner.run(StepPlan(step=5, ends=(1,), rows=(row(0, 4, 1),))).rows[0].tokens
    assert good == [2, *truth([2], 5)]
