"""A real model answers random requests with drafts as it does without: a short run of a tool that goes on."""

from benchmarks.speculation import exact


def test_answers_with_drafts_are_those_without(smollm2_path):
    """SP-1, SA-7: stops, grammars, choices and log-probabilities, methods that change by request."""
    model = str(smollm2_path)
    tally = exact.run(model, [f"auto,draft={model}", "suffix,early-exit=4"], seed=3, count=2)
    assert not tally.faults, tally.faults[:2]
    counts = tally.counts
    assert counts["rounds"] == 2
    assert counts["requests"] >= 6
    assert counts["drafts_checked"] > counts["drafts_accepted"] > 0
    assert counts["draft_faults"] == 0
