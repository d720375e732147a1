"""The cost model: work counted by hand, coefficients found again, small errors where machines drift."""

import random
from dataclasses import replace

import pytest

from headrace.base.ids import SlotId
from headrace.base.step import Row, StepPlan, StepResult
from headrace.compute.device.limits import Limits
from headrace.compute.runner.work import Work
from headrace.engine.cost.fit import Fit
from headrace.engine.cost.meter import StepMeter
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import CostShape

LIMITS = Limits(
    threads=2,
    read_bytes_s=4e10,
    fma_ops_s=2e11,
    pair_ops_s=4e11,
    int8_ops_s=9e11,
    int16_ops_s=5e11,
    source="measured",
)
SHAPE = CostShape.of(
    Work(per_token=200_000_000, per_logits=60_000_000, attention=((None, 60_000),)), 100_000_000, 23_000
)


def row(start, count, *, sample=True, drafts=0, slot=0):
    return Row(slot=SlotId(slot), lease=slot, start=start, count=count, sample=sample, num_drafts=drafts)


def test_work_of_a_step_by_hand():
    decode = SHAPE.work_of([row(9, 1), row(19, 1, slot=1)])
    assert decode == (True, 2, 2, 10 + 20, 0, 2)
    mixed = SHAPE.work_of([row(9, 1), row(4, 3, sample=False, slot=1)])
    assert mixed == (False, 4, 1, 10, 5 + 6 + 7, 2)
    drafted = SHAPE.work_of([row(9, 3, drafts=2)])
    assert drafted == (True, 3, 3, 0, 10 + 11 + 12, 1)
    assert SHAPE.work_of([row(0, 1, sample=False)]).is_decode is False


def test_windows_bound_what_is_seen_in_the_layers_that_have_them():
    half = CostShape.of(Work(per_token=1, per_logits=1, attention=((None, 10), (4, 10))), 1, 1)
    assert half.work_of([row(9, 1)]).keys == (10 + 4) / 2
    # Positions 2, 3, 4, 5 see 3, 4, 5, 6 keys, or 3, 4, 4, 4 through the window.
    assert half.work_of([row(2, 4)]).pairs == (18 + 15) / 2
    assert half.work_of([row(50, 2)]).pairs == (51 + 52 + 8) / 2


def test_the_roof_is_the_slower_of_reading_and_computing():
    model = StepModel(SHAPE, LIMITS)
    one, many = SHAPE.work_of([row(0, 1)]), SHAPE.work_of([row(0, 512)])
    memory_s, compute_s = model.roof_s(one)
    assert memory_s == pytest.approx((100_000_000 + 23_000) / 4e10)
    assert compute_s < memory_s
    memory_s, compute_s = model.roof_s(many)
    pairs = 512 * 513 / 2
    assert compute_s == pytest.approx((512 * 200_000_000 + 60_000_000) / 9e11 + 60_000 * pairs / 5e11)
    assert compute_s > memory_s


def test_float_matrices_are_held_against_the_float_rate():
    as_float = StepModel(replace(SHAPE, is_float=True), LIMITS)
    work = SHAPE.work_of([row(0, 512)])
    assert as_float.roof_s(work)[1] > 4 * StepModel(SHAPE, LIMITS).roof_s(work)[1]
    in_pairs = StepModel(replace(SHAPE, is_float=True, in_pairs=True), LIMITS)
    assert (SHAPE.in_pairs, as_float.peak_ops_s, in_pairs.peak_ops_s) == (False, 2e11, 4e11)
    attention_s = 60_000 * (512 * 513 / 2) / 5e11
    seconds = [model.roof_s(work)[1] - attention_s for model in (as_float, in_pairs)]
    assert seconds[0] == pytest.approx(2 * seconds[1])


def test_a_fit_finds_the_coefficients_of_what_it_sees():
    rng, truth = random.Random(1), (2.0, 0.5, 3.0)
    fit = Fit((1.0, 1.0, 1.0), drift=0.0)
    for _ in range(3000):
        x = (1.0, rng.random() * 10, rng.random())
        fit.observe(x, sum(c * v for c, v in zip(truth, x, strict=True)) * rng.gauss(1, 0.05))
    assert fit.coefficients == pytest.approx(truth, rel=0.03)


def test_a_hiccup_moves_a_fit_little():
    fit = Fit((1.0, 1.0), drift=0.0)
    for i in range(200):
        fit.observe((1.0, i % 10), 1.0 + i % 10)
    before = fit.predict((1.0, 5.0))
    fit.observe((1.0, 5.0), 6000.0)
    assert fit.predict((1.0, 5.0)) == pytest.approx(before, rel=0.02)


def test_a_first_step_that_misleads_is_forgotten_soon():
    fit = Fit((1.0, 1.0))
    fit.observe((1.0, 5.0), 60.0)  # ten times what such a step takes: memory was touched for the first time
    for i in range(12):
        fit.observe((1.0, 5.0 + i % 3), 6.0 + i % 3)
    assert fit.predict((1.0, 6.0)) == pytest.approx(7.0, rel=0.1)


def test_a_sudden_change_is_followed_within_some_steps():
    fit = Fit((1.0, 1.0))
    for i in range(2000):
        fit.observe((1.0, i % 10), 1.0 + i % 10)
    for i in range(20):
        fit.observe((1.0, i % 10), 3.0 * (1.0 + i % 10))
    assert fit.predict((1.0, 6.0)) == pytest.approx(21.0, rel=0.1)


def test_no_coefficient_becomes_negative():
    fit = Fit((1.0, 1.0))
    for i in range(500):
        fit.observe((1.0, i % 7), 10.0 - i % 7)
    assert min(fit.coefficients) > 0


class Machine:
    """Steps of a machine that is neither the model's first guess nor of its form, with noise and hiccups."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.slow = 1.0

    def seconds(self, rows):
        work = SHAPE.work_of(rows)
        compute_s = SHAPE.operations(work) / 9e11 * 2.6
        exact = 1.6e-3 + 20e-6 * work.num_rows + max(1.9e-3, compute_s)
        exact += work.keys * 23_000 / 3e10 + work.pairs * 60_000 / 1.5e11
        noise = self.rng.gauss(1, 0.05) * (3.0 if self.rng.random() < 0.004 else 1.0)
        return exact * self.slow * max(0.5, noise)

    def rows(self):
        decodes = [
            row(self.rng.randrange(2000), 1, slot=i) for i in range(self.rng.choice([0, 1, 2, 4, 8, 16]))
        ]
        if self.rng.random() < 0.3 or not decodes:
            decodes.append(row(self.rng.choice([0, 0, 512, 1024]), self.rng.randint(16, 512), slot=99))
        return decodes


def mean_error(meter, machine, seconds):
    """Run for so long, then the relative error over as long again."""
    for is_counted in (False, True):
        before, time_s = dict(meter.counters()), 0.0
        while time_s < seconds:
            rows = machine.rows()
            took = machine.seconds(rows)
            time_s += took
            meter.see(StepPlan(step=1, rows=tuple(rows)), StepResult(step=1, rows=(), seconds=took))
        if is_counted:
            after = meter.counters()
            total = {k: after[k] - before[k] for k in after}
            return {
                phase: total[f"{phase}_step_error_seconds"] / total[f"{phase}_step_seconds"]
                for phase in ("decode", "prefill")
            }
    raise AssertionError


def test_the_error_is_small_after_half_a_minute_of_mixed_work():
    errors = mean_error(StepMeter(StepModel(SHAPE, LIMITS)), Machine(3), 30.0)
    assert errors["decode"] < 0.10
    assert errors["prefill"] < 0.10


def test_a_machine_that_becomes_slower_is_followed():
    meter, machine = StepMeter(StepModel(SHAPE, LIMITS)), Machine(4)
    mean_error(meter, machine, 20.0)
    machine.slow = 1.6
    errors = mean_error(meter, machine, 20.0)
    assert max(errors.values()) < 0.12


def test_sums_of_a_step():
    meter = StepMeter(StepModel(SHAPE, LIMITS))
    plan = StepPlan(step=1, rows=(row(0, 64),))
    meter.see(plan, StepResult(step=1, rows=(), seconds=0.5, bytes_read=7, operations=9))
    counters = meter.counters()
    assert counters["prefill_steps"] == 1
    assert counters["prefill_step_tokens"] == 64
    assert (counters["prefill_step_bytes"], counters["prefill_step_operations"]) == (7, 9)
    assert counters["prefill_step_seconds"] == 0.5
    assert counters["prefill_compute_roof_seconds"] > 0 == counters["prefill_memory_roof_seconds"]
    assert counters["prefill_step_error_seconds"] == pytest.approx(
        0.5 - counters["prefill_step_predicted_seconds"]
    )
    assert not any(value for name, value in counters.items() if name.startswith("decode"))


def test_rows_that_decode_are_counted_by_the_kind_of_step_they_are_in():
    meter = StepMeter(StepModel(SHAPE, LIMITS))
    decoding = [row(100, 1, slot=n) for n in range(3)]
    drafting = row(100, 3, drafts=2, slot=7)
    for rows in ((*decoding, drafting), (row(0, 64), *decoding, drafting), (row(0, 64),)):
        meter.see(StepPlan(step=1, rows=rows), StepResult(step=1, rows=(), seconds=0.5))
    counters = meter.counters()
    assert counters["decode_decode_row_seconds"] == 4 * 0.5
    assert counters["prefill_decode_row_seconds"] == 4 * 0.5
