"""The doctor on drafts (SP-3): silent where a drafter agrees as it should, else it warns."""

import numpy as np
import pytest

from headrace.compute.spec import chain
from headrace.engine.doctor.checks.drafts import CHECK
from headrace.engine.doctor.diagnosis import diagnose, is_fine
from headrace.engine.doctor.finding import Patient
from headrace.engine.doctor.trace import Scrape, Trace, values_of
from headrace.engine.settings.notes import Setting
from headrace.serve.metrics import ServerMetrics
from tests.engine.test_draft_model import changed_rig, request
from tests.kit.engine import Drive, rig

ALL_LAYERS = "early-exit=2: …; the first 2 of 2 layers draft, with the model's own weights and KV; warning: …"


def trace_of(counters, method, reason="asked for"):
    """What a server shows that has counted this with these drafts."""
    metrics = ServerMetrics()
    metrics.tell_settings([Setting(name="speculate.method", asked=method, value=method, reason=reason)])
    metrics.alive.set(1)
    metrics.engine.latest = counters
    values = values_of(metrics.registry.collect())
    return Trace([Scrape(0.0, dict(values)), Scrape(10.0, values)])


def looked_at(counters, method, reason="asked for"):
    return CHECK.look(Patient(trace=trace_of(counters, method, reason)))


def drafted(draft, depth=1, num=179):
    """What an engine counted that answered one request with drafts of this model."""
    subject = rig("native", 1)
    asked = request(max_tokens=num)
    core = subject.core(draft=draft, dtype="f32", speculate=f"draft=x,depth={depth}")
    assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
    return core.stats()


class Shifted(chain.Inputs):
    """The drafter is fed the token before."""

    def gather(self, pieces):
        context = super().gather(pieces)
        (slot,) = {piece.slot for piece in pieces}
        context.token_ids[:] = self._state.tokens[slot, np.maximum(context.positions - 1, 0)]
        return context


def test_a_model_that_drafts_for_itself_and_a_pair_that_belongs_together_are_silent():
    for draft in (rig("native", 1), changed_rig("near", 0.02)):
        counted = drafted(draft)
        assert counted.counters["draft_rows"] > 55
        assert looked_at(counted, "draft=x,depth=1") is None


def test_a_drafter_that_is_fed_the_token_before_is_found(monkeypatch):
    monkeypatch.setattr(chain, "Inputs", Shifted)
    counted = drafted(rig("native", 1))
    found = looked_at(counted, "draft=x,depth=4")
    assert found.name == "drafts refused"
    assert found.severity == "warning"
    counts = counted.counters
    first = counts.get("drafts_accepted_0", 0) / counts["draft_rows"]
    assert found.evidence["accepted_at_first_place"] == first < 0.3
    assert "input shifted" in found.remedy
    assert not is_fine(diagnose(Patient(trace=trace_of(counted, "draft=x,depth=4"))))
    assert looked_at(counted, "ngram,depth=4") is None  # of a text that repeats nothing none agree
    assert looked_at(counted, "early-exit=1", "…; the first 1 of 2 layers draft, with") is None


class Counted:
    """Stats of an engine that counted this."""

    def __init__(self, method, rows, first, checked, accepted):
        self.gauges = {}
        self.counters = {"draft_rows": rows, "drafts_checked": checked, "drafts_accepted": accepted}
        self.counters |= {"drafts_accepted_0": first, "drafts_proposed": checked}
        by_method = {"rows": rows, "checked": checked, "accepted": accepted, "first": first}
        self.counters |= {f"drafts_by_{method}_{key}": count for key, count in by_method.items()}


@pytest.mark.parametrize(
    ("counts", "method", "reason", "is_found"),
    [
        ((64, 19, 256, 19), "draft=x", "", True),
        ((64, 20, 256, 20), "draft=x", "", False),  # 0.31 at the first place
        ((63, 0, 252, 0), "draft=x", "", False),  # too few to say
        ((100, 10, 400, 12), "medusa=x", "", True),
        ((100, 10, 400, 12), "eagle=x", "", True),
        ((100, 10, 400, 12), "auto", "", False),
        ((100, 94, 400, 379), "early-exit=2", ALL_LAYERS, True),
        ((100, 96, 400, 380), "early-exit=2", ALL_LAYERS, False),  # the ends of answers
        ((100, 10, 400, 12), "early-exit=1", "the first 1 of 2 layers draft", False),  # as few as expected
        ((0, 0, 0, 0), "draft=x", "", False),
    ],
)
def test_thresholds(counts, method, reason, is_found):
    found = looked_at(Counted(method.partition("=")[0], *counts), method, reason)
    assert (found is not None) == is_found


def test_drafts_of_a_lookup_beside_a_drafter_are_not_held_against_it():
    bad, good = Counted("suffix", 100, 10, 400, 12), Counted("draft", 100, 60, 400, 130)
    bad.counters |= {name: n for name, n in good.counters.items() if name.startswith("drafts_by_draft")}
    assert looked_at(bad, "auto,draft=x") is None
    worse = Counted("draft", 100, 10, 400, 12)
    bad.counters |= {name: n for name, n in worse.counters.items() if name.startswith("drafts_by_draft")}
    found = looked_at(bad, "auto,draft=x,depth=4")
    assert found.evidence["drafter"] == "draft"
    assert found.evidence["accepted_at_first_place"] == 0.1


def test_figures_are_those_of_the_metrics():
    """100 rows with 4 drafts each; 10 agree at the first place, 12 at any: 1.12 tokens a row."""
    found = looked_at(Counted("draft", 100, 10, 400, 12), "draft=secret-name,depth=4")
    assert found.evidence == {
        "drafter": "draft",
        "accepted_at_first_place": 0.1,
        "accepted_of_checked": 0.03,
        "tokens_per_row": pytest.approx(1.12),
    }
    assert found.expected_gain == "1.3 tokens a row or more instead of 1.12"
