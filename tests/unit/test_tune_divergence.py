"""Settings that change answers: their divergence by hand, and what a search makes of it."""

import math
import random
from pathlib import Path

import pytest

from headrace.base.errors import RequestError
from headrace.cli.settings import gather
from headrace.tools.tune import report
from headrace.tools.tune.divergence import EXACT, TOP, Loss, divergence, loss_of
from headrace.tools.tune.knobs import Knob, Point, lossy_of
from headrace.tools.tune.search import Bound, Search
from tests.unit.test_tune import RULES, Machine, search, seqs

LOSSY = (Knob("kv.dtype", ("int8",), "", is_lossy=True),)


def bounded(loss, max_kl: float = 0.005):
    """A search in which int8 is twice as fast and does this to the answers."""
    machine = Machine(lambda p: 2.0 if p else 1.0, noise=0.02)
    asked: list[Point] = []

    def measure(point: Point) -> Loss:
        asked.append(point)
        if isinstance(loss, Exception):
            raise loss
        return loss if lossy_of(point) else EXACT

    found = Search(machine.measure, RULES, 1e9, bound=Bound(measure, max_kl)).run(LOSSY)
    return machine, asked, found


def test_a_lossy_setting_within_the_bound_is_taken_and_its_divergence_told(tmp_path: Path):
    loss = Loss(0.005, 0.0002, 0.985, 812)
    _, asked, found = bounded(loss)
    assert found.best == {"kv.dtype": "int8"}
    assert [trial.loss for trial in found.trials] == [loss, loss]
    assert asked == [found.best, found.best]  # the last comparison is of answers, too
    told = "KL 5.00e-03 ± 2.0e-04 nats over 812 tokens, 98.5% the same most likely"
    table = report.markdown(found, RULES).splitlines()
    assert table[0].count("|") == table[2].count("|") == table[3].count("|")
    assert told in table[2]
    text = report.settings_file(found, RULES, "x")
    assert sum(line.startswith("#") and told in line for line in text.splitlines()) == 2
    (tmp_path / "tuned.yaml").write_text(text)
    assert gather({}, tmp_path / "tuned.yaml", {}).config.kv.dtype == "int8"
    assert report.as_json(found, RULES)["trials"][0]["loss"]["kl"] == 0.005


def test_a_lossy_setting_above_the_bound_is_refused_unmeasured_however_fast():
    loss = Loss(0.0051, 0.0002, 0.9, 812)
    machine, _, found = bounded(loss)
    assert (found.best, machine.asked) == ({}, [])
    row = report.markdown(found, RULES).splitlines()[2]
    assert "KL 5.10e-03" in row
    assert "refused: answers move by more than --max-kl 0.005 nats a token" in row
    assert "# kv.dtype = int8 | the defaults | KL 5.10e-03" in report.settings_file(found, RULES, "x")
    assert bounded(loss, 0.01)[2].best == {"kv.dtype": "int8"}


def test_a_lossy_setting_whose_divergence_cannot_be_measured_is_refused():
    machine, _, found = bounded(RequestError("the server tells nothing"))
    assert (found.best, machine.asked) == ({}, [])
    assert found.trials[0].error == "the server tells nothing"


def test_exact_settings_are_told_to_leave_the_answers():
    found = search(Machine(seqs, noise=0.01))
    assert "| schedule.max_num_seqs = 32 |" in report.markdown(found, RULES)
    assert report.markdown(found, RULES).count("| the same |") == len(found.trials)
    assert lossy_of({"kv.dtype": "auto", "schedule.max_num_seqs": 16}) == {}
    assert lossy_of({"kv.dtype": "f16", "schedule.max_num_seqs": 16}) == {"kv.dtype": "f16"}


def place(*chances: float) -> dict[int, float]:
    return {token: math.log(chance) for token, chance in enumerate(chances)}


def test_divergence_by_hand():
    assert divergence(place(0.5, 0.25, 0.25), place(0.25, 0.5, 0.25)) == pytest.approx(0.25 * math.log(2))
    assert divergence(place(0.5, 0.25), place(0.5, 0.25)) == 0.0
    # What is not told is one token with 0.25 and 0.5.
    found = divergence(place(0.5, 0.25), place(0.25, 0.25))
    assert found == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5))
    loss = loss_of([place(0.5, 0.5), place(0.9, 0.1)], [place(0.5, 0.5), place(0.1, 0.9)])
    each = 0.9 * math.log(9) - 0.1 * math.log(9)
    assert loss == Loss(pytest.approx(each / 2), pytest.approx(each / 2), 0.5, 2)
    with pytest.raises(RequestError, match="got 2 and 1"):
        loss_of([place(1.0)] * 2, [place(1.0)])


@pytest.mark.parametrize("noise", [0.01, 0.3, 3.0])
def test_divergence_is_at_most_the_true_one_and_near_it(noise: float):
    """Distributions over 300 tokens of which 20 are told: the sum over all is the truth."""
    rng = random.Random(4)
    bounds, truths = [], []
    for _ in range(200):
        heights = [rng.gauss(0.0, 3.0) for _ in range(300)]
        pair = [logs(heights), logs([h + rng.gauss(0.0, noise) for h in heights])]
        truth = sum(math.exp(a) * (a - b) for a, b in zip(*pair, strict=True))
        told = [dict(sorted(enumerate(one), key=lambda e: -e[1])[:TOP]) for one in pair]
        bounds.append(divergence(*told))
        truths.append(truth)
        assert bounds[-1] <= truth + 1e-9
    assert sum(bounds) > 0.6 * sum(truths)


def test_a_likely_token_that_the_other_does_not_tell_counts():
    exact = place(0.99, *[0.01 / 19] * 19)
    changed = {token + 100: math.log(0.05) for token in range(20)}
    assert divergence(exact, changed) > 0.99 * math.log(0.99 / 0.05) - 0.2


def logs(heights: list[float]) -> list[float]:
    total = math.log(sum(math.exp(h) for h in heights))
    return [h - total for h in heights]
