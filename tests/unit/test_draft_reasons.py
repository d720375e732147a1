"""Why rows check drafts or do not: told of every request, and counted."""

import json

import pytest

from headrace.base.metrics.drafts import DraftReason, DraftReport, added
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import Speculation
from tests.engine.test_speculation import scripted_rig
from tests.kit.drafts import Machine, draft_with, simulate
from tests.kit.engine import END, GRAMMARS, Drive, rig
from tests.kit.host import World, make_request

WHY = DraftReason


class Told(Drive):
    """Keeps what is told of drafts at the end of each request."""

    def take(self, news) -> None:
        self.reports = getattr(self, "reports", {})
        for delta in () if news is None else news.deltas:
            if delta.timing is not None:
                self.reports[delta.request_id] = delta.timing.drafts
        super().take(news)


def test_of_a_known_trace():
    """SP-11: places and tokens per row, as in `test_counts_of_a_known_trace`."""
    core = scripted_rig().core(speculate="ngram,depth=4")
    draft_with(core, lambda ids: [ids[-1] + 1, ids[-1] + 2, 3, 3])
    drive = Told(core)
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=13)
    drive.run([Request(request_id="r", prompt_ids=(3, 4), sampling=sampling)])
    report = drive.reports["r"]
    assert report.rows_by_reason == (
        (WHY.FIXED, 4),
        (WHY.NOTHING_FOUND, 1),
    )  # the prompt's row had none to check
    assert (report.num_rows, report.accepted_by_place, report.tokens_per_row) == (4, (4, 4), 3.0)
    assert report.depth == 2  # no more tokens were to come
    assert report.sentence() == "as many drafts as were asked for (4 of 5 rows)"
    counts = core.stats().counters
    assert counts["draft_why_fixed"] == 4
    assert counts["draft_why_nothing_found"] == 1


def test_a_simulated_machine_names_who_drafted():
    world = World(num_blocks=40, num_drafts=4)
    world.add(make_request("a", [1, 2, 3], max_tokens=40))
    world.run()
    counts = world.scheduler.drafts.counts
    assert counts["drafts_by_sim_checked"] == counts["drafts_checked"] > 40
    assert counts["drafts_by_sim_accepted"] == counts["drafts_accepted"] > 0


def test_what_is_never_drafted_is_told_too():
    core = rig("native", 1).core(dtype="f32", speculate="ngram,depth=3")
    draft_with(core, lambda ids: [5, 6])
    drive = Told(core)
    free = SamplingParams(temperature=0.0, seed=0, max_tokens=9)
    ways = {
        "grammar": SamplingParams(temperature=0.0, seed=0, max_tokens=9, structured=GRAMMARS[0]),
        "off": SamplingParams(temperature=0.0, seed=0, max_tokens=9, speculate="off"),
        "free": free,
    }
    requests = [
        Request(request_id=name, prompt_ids=(3, 4, 5), sampling=sampling, end_ids=frozenset({END}))
        for name, sampling in ways.items()
    ]
    drive.run(requests)
    assert {name: report.reason for name, report in drive.reports.items()} == {
        "grammar": WHY.GRAMMAR,
        "off": WHY.OFF,
        "free": WHY.FIXED,
    }
    grammar = drive.reports["grammar"]
    assert grammar.sentence() == "grammar: not drafted"
    assert (grammar.num_rows, grammar.tokens_per_row, len(grammar.rows_by_reason)) == (0, None, 1)
    assert core.stats().counters["draft_why_grammar"] == grammar.rows_by_reason[0][1] > 0


def test_without_speculation_nothing_is_told():
    drive = Told(rig("native", 1).core(dtype="f32"))
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=3)
    drive.run([Request(request_id="r", prompt_ids=(3, 4, 5), sampling=sampling)])
    assert drive.reports == {"r": None}


def dear(rows, drafts):
    """A draft takes as long as all else."""
    return 0.01 + 0.011 * drafts


def cheap(rows, drafts):
    return 0.01 + 0.0005 * drafts


@pytest.mark.parametrize(
    ("rate", "cost", "reason"), [(0.9, cheap, WHY.PAYS), (0.3, dear, WHY.NO_GAIN)], ids=["pays", "no_gain"]
)
def test_the_figures_are_those_of_the_choice(rate, cost, reason):
    reports: list[DraftReport | None] = []
    machine = Machine(lambda *_: rate, cost, most=6)
    simulate(machine, Speculation("auto"), 1, 300, reports=reports)
    (report,) = reports
    assert report is not None
    rows = dict(report.rows_by_reason)
    assert sum(rows.values()) == 360
    assert rows.get(WHY.PAYS, 0) == report.num_rows == sum(depth > 0 for depth in machine.depths)
    assert report.price is not None
    assert report.gain is not None
    assert report.chances[0] == pytest.approx(rate, abs=0.2)
    if reason is WHY.PAYS:
        assert rows[WHY.MEASURING] > 1
        assert report.reason is reason
        assert rows[reason] > 250
        assert report.gain > 1.5
        assert "drafts that pay" in report.sentence()
        assert f"takes {report.price:.2f} x as long" in report.sentence()
    else:
        assert 60 < rows[reason] < 85
        assert rows[reason] + rows[WHY.SELDOM] > 300  # asked every eighth row, after a while
        assert f"promises {report.gain:.2f} x" in report.sentence()
        assert report.price > 1.5
        assert report.gain < 1.04


def test_rows_that_had_to_do_without_say_so():
    """No draft is there; a step has no room for the drafts that are there."""
    core = scripted_rig().core(budget=2, slots=2, speculate="ngram,depth=4")
    draft_with(core, lambda ids: [] if len(ids) < 10 else [ids[-1] + 1])
    drive = Told(core)
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=20)
    requests = [Request(request_id=f"r{i}", prompt_ids=(3, 4), sampling=sampling) for i in range(2)]
    drive.run(requests)
    rows = dict(drive.reports["r0"].rows_by_reason)
    assert rows[WHY.NOTHING_FOUND] >= 7
    assert rows[WHY.NO_ROOM] >= 3


def test_reports_are_plain_data_and_add_up():
    one = DraftReport(
        rows_by_reason=((WHY.NO_GAIN, 9),), chances=(0.25, 0.125), price=2.0, gain=0.625, accepted_by_place=()
    )
    assert json.loads(json.dumps(one.body()))["rows_by_reason"] == {"no_gain": 9}
    assert "promises 0.62 x" in one.sentence()
    assert "first draft's chance is 0.25" in one.sentence()
    assert added(None, one) is added(one, None) is one
    assert added(None, None) is None
