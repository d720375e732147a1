"""The doctor's rules on what it read from live servers under planted loads (`benchmarks/doctor`)."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.doctor.causes import CAUSES
from headrace.engine.doctor.diagnosis import as_json, diagnose
from headrace.engine.doctor.finding import Patient
from headrace.engine.doctor.trace import Scrape, Trace

RECORDED = json.loads((Path(__file__).parents[1] / "golden/doctor_traces.json").read_text())
ENOUGH = 0.9


def trace_of(seconds, values):
    """A trace whose counters grow by these values, and whose gauges have them all the time."""
    last = dict(zip(RECORDED["names"], values, strict=True))
    first = {n: 0.0 if re.search(r"_(total|sum|count)(\{|$)", n) else v for n, v in last.items()}
    return Trace([Scrape(0.0, first), Scrape(seconds, last)])


@pytest.mark.parametrize("cause", CAUSES)
def test_what_was_planted_is_named_in_nine_of_ten_runs(cause):
    runs = [(seconds, values) for name, seconds, *values in RECORDED["runs"] if name == cause]
    assert len(runs) == 10
    named = [as_json(diagnose(Patient(trace=trace_of(*run))))["bottleneck"] for run in runs]
    assert sum(name in CAUSES[cause].right for name in named) >= ENOUGH * len(runs), named
