"""Angle banks: a position's angles depend on the position and the prompt length only."""

import time
from dataclasses import replace

import numpy as np
import pytest

from headrace.base.errors import CheckpointError
from headrace.base.specs import RopeSpec
from headrace.compute.models.rope import RopeBank, angles

STATIC = RopeSpec(kind="default", dims=16, original_length=64)
DYNAMIC = RopeSpec(kind="dynamic", dims=16, original_length=64, params={"factor": 8.0})
LONG = RopeSpec(
    kind="longrope",
    dims=16,
    original_length=64,
    params={"factor": 8.0, "short_factor": (1.0,) * 8, "long_factor": (2.0,) * 8},
)
P = 300


def looked_up(bank, spec, slot, positions, prompt_len):
    cosines, sines = bank.table(spec)
    rows = bank.rows(slot, np.asarray(positions, np.int32), prompt_len)
    return cosines[rows], sines[rows]


def expected(spec, position, prompt_len):
    return angles(spec, np.array([position]), max(prompt_len, position + 1))


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC, LONG], ids=lambda s: s.kind)
@pytest.mark.parametrize("prompt_len", [1, 63, 64, 65, 200])
def test_rows_hold_the_angles_of_the_effective_length(spec, prompt_len):
    bank = RopeBank([spec], P, max_slots=3)
    bank.begin(2, prompt_len)
    positions = [0, 1, 63, 64, 65, prompt_len - 1, prompt_len, 299]
    cosines, sines = looked_up(bank, spec, 2, positions, prompt_len)
    for i, position in enumerate(positions):
        cos, sin = expected(spec, position, prompt_len)
        assert np.array_equal(cosines[i], cos[0])
        assert np.array_equal(sines[i], sin[0])


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC, LONG], ids=lambda s: s.kind)
def test_slots_do_not_disturb_each_other(spec):
    bank = RopeBank([spec], P, max_slots=2)
    bank.begin(0, 200)
    before = looked_up(bank, spec, 0, range(P), 200)
    bank.begin(1, 70)
    after = looked_up(bank, spec, 0, range(P), 200)
    assert np.array_equal(before, after)


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC, LONG], ids=lambda s: s.kind)
def test_equal_domains_mean_equal_angles_of_the_prompt(spec):
    """Blocks of one domain may be shared, so the angles of every common prompt position must be equal."""
    bank = RopeBank([spec], P, max_slots=2)
    lengths = [1, 30, 63, 64, 65, 66, 150, 300]
    for one in lengths:
        for two in lengths:
            if bank.kv_domain(one) != bank.kv_domain(two):
                continue
            bank.begin(0, one)
            bank.begin(1, two)
            positions = range(max(one, two))
            a, b = looked_up(bank, spec, 0, positions, one), looked_up(bank, spec, 1, positions, two)
            assert np.array_equal(a, b), (one, two)


def test_domains():
    assert RopeBank([STATIC], P).kv_domain(10**6) == ""
    assert [RopeBank([LONG], P).kv_domain(n) for n in (64, 65, 200)] == ["", "long", "long"]
    assert len({RopeBank([DYNAMIC], P).kv_domain(n) for n in (64, 65, 200)}) == 3


def test_static_rows_are_positions_and_tables_are_shared():
    other = RopeSpec(kind="linear", dims=8, original_length=64, params={"factor": 2.0})
    bank = RopeBank([STATIC, other, STATIC], P)
    positions = np.arange(5, dtype=np.int32)
    assert np.array_equal(bank.rows(3, positions, 9), positions)
    assert bank.table(STATIC)[0].shape == (P, 8)
    assert bank.table(other)[0].shape == (P, 4)
    assert np.array_equal(bank.table(other)[0][2], angles(other, np.array([2]), 0)[0][0])


def test_original_lengths_that_differ_are_refused():
    """They would share one class of keys although one of them tells lengths apart that the other does not."""
    with pytest.raises(CheckpointError, match="64, 128"):
        RopeBank([LONG, replace(LONG, original_length=128)], P)


def test_entering_a_slot_of_a_long_dynamic_model_is_quick():
    bank = RopeBank([DYNAMIC], 50_000, max_slots=2)
    start = time.process_time()
    bank.begin(0, 50)
    bank.begin(1, 5_000)
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize("prompt_len", [60, 64, 65, 200])
def test_what_ran_in_a_slot_before_does_not_matter(prompt_len):
    fresh, used = RopeBank([DYNAMIC, STATIC], P, max_slots=2), RopeBank([DYNAMIC, STATIC], P, max_slots=2)
    for before in (250, 70, 10):
        used.begin(1, before)
    for bank in (fresh, used):
        bank.begin(1, prompt_len)
    for spec in (DYNAMIC, STATIC):
        one, two = (looked_up(bank, spec, 1, range(P), prompt_len) for bank in (fresh, used))
        assert np.array_equal(one, two)
        assert np.array_equal(one, looked_up(used, spec, 1, range(P), prompt_len))


def test_dynamic_and_longrope_together_are_refused():
    with pytest.raises(CheckpointError, match="dynamic and longrope"):
        RopeBank([DYNAMIC, LONG], P)
