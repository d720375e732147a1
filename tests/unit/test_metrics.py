"""The definitions of what is measured: the page's worked example, and the edges."""

import doctest
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.metrics import (
    Latency,
    Slo,
    acceptance_by_position,
    acceptance_rate,
    goodput,
    itls_s,
    percentile,
    throughput,
    tokens_per_verification,
    tpot_s,
)

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_worked_example_of_the_page_is_right():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_mean_gap_of_single_tokens_is_the_time_per_token():
    outputs = [1.0, 1.25, 2.0, 2.5]
    assert tpot_s(outputs[0], outputs[-1], len(outputs)) == sum(itls_s(outputs)) / 3 == 0.5


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_an_answer_of_less_than_two_tokens_has_no_time_per_token(num_tokens):
    assert tpot_s(1.0, 2.0, num_tokens) is None


def test_a_request_without_outputs_has_no_latency():
    with pytest.raises(ValueError, match="failed"):
        Latency.of(0.0, [], 0)


def test_an_objective_is_kept_at_its_bound_and_broken_above():
    at = Latency(ttft_s=0.5, e2el_s=2.0, tpot_s=0.1)
    for name in ("ttft_s", "tpot_s", "e2el_s"):
        most = getattr(at, name)
        assert Slo(**{name: most}).is_met(at)
        assert not Slo(**{name: most - 1e-9}).is_met(at)
    halting = Latency(ttft_s=0.5, e2el_s=2.0, tpot_s=0.1, itls_s=(0.1, 0.4, 0.2))
    assert Slo(itl_s=0.4).is_met(halting)
    assert not Slo(itl_s=0.39).is_met(halting)
    assert Slo(itl_s=0.0).is_met(at)
    assert Slo(tpot_s=0.0).is_met(Latency(ttft_s=9.0, e2el_s=9.0))
    assert goodput([at, at], Slo(ttft_s=0.1), 4.0) == 0.0
    assert goodput([at, at], Slo(), 4.0) == 0.5


def test_no_time_and_no_drafts_give_no_division_by_zero():
    assert throughput(5, 0.0) == 0.0
    assert acceptance_rate(0, 0) is None
    assert tokens_per_verification(0, 0) is None
    assert acceptance_by_position((1, 0), (2, 0)) == (0.5, None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values, percent):
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_percentiles_of_nothing_or_beyond_the_ends_are_refused():
    for values, percent in (([], 50), ([1.0], -1), ([1.0], 101), ([1.0], float("nan"))):
        with pytest.raises(ValueError, match="no percentile"):
            percentile(values, percent)
