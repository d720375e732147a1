"""The last line of `headrace verify`: what was proved, and what was not."""

import pytest

from headrace.tools.verify.verifying import Difference, Verdict, total_text


def verdict(outcome: str) -> Verdict:
    place = Difference(prompt=0, token=1, wanted="a", got="b")
    found = Verdict(
        case="batch",
        about="in a batch",
        requests=2,
        tokens=8,
        differences=(place,) if outcome == "differs" else (),
        exercise="2 at a time" if outcome != "not exercised" else "",
        seconds=1.0,
        error="no room" if outcome == "failed" else "",
    )
    assert found.outcome == outcome
    return found


@pytest.mark.parametrize(
    ("outcomes", "line"),
    [
        (["exact"] * 5, "exact: 2 prompts, 5 cases"),
        (
            ["exact"] * 5 + ["not exercised"] * 4,
            "exact: 2 prompts, 5 cases; 4 not exercised (use more or longer prompts)",
        ),
        (["exact", "differs"], "NOT exact: 2 prompts, 2 cases"),
        (
            ["failed", "not exercised"],
            "NOT exact: 2 prompts, 1 cases; 1 not exercised (use more or longer prompts)",
        ),
        (
            ["not exercised"] * 2,
            "nothing proved: 2 prompts, 2 cases not exercised (use more or longer prompts)",
        ),
    ],
)
def test_cases_that_proved_nothing_are_not_counted_as_exact(outcomes: list[str], line: str) -> None:
    assert total_text(2, [verdict(outcome) for outcome in outcomes]) == line
