"""`headrace tune` on made-up machines whose best settings are known, under 20 % of noise."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError, EngineDeadError, RequestError
from headrace.cli.main import main
from headrace.cli.settings import gather
from headrace.compute.device.kinds.cpu import detect
from headrace.tools.bench.bootstrap import T_975
from headrace.tools.bench.run import Plan
from headrace.tools.tune import live, report
from headrace.tools.tune.duel import Rules, Verdict, gain, judge, student
from headrace.tools.tune.knobs import DEFAULT, KNOBS, Knob, Point, flags_of, free_threads, knobs, split_flags
from headrace.tools.tune.search import Pair, Search

NOISE = 0.2
RULES = Rules(most_pairs=400)
TWO = (Knob("kv.prefix_cache", (False,), ""), Knob("schedule.max_num_seqs", (16, 32), ""))


@dataclass
class Machine:
    """Scores by settings, with noise on each half of a pair."""

    score: Callable[[Point], float]
    seed: int = 0
    noise: float = NOISE
    pair_s: float = 1.0
    asked: list[tuple[Point, Point]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def measure(self, first: Point, second: Point, number: int) -> Pair:
        assert number == len(self.asked), "a server that stays up was asked the same again"
        self.asked.append((first, second))
        a, b = (self.score(p) * math.exp(self.rng.gauss(0.0, self.noise)) for p in (first, second))
        return Pair(b / a, self.pair_s)


def search(machine: Machine, turned=TWO, budget: float = 1e9, rules: Rules = RULES):
    return Search(machine.measure, rules, budget).run(turned)


def seqs(point: Point) -> float:
    return {16: 1.15, 32: 1.4}.get(point.get("schedule.max_num_seqs"), 1.0)  # type: ignore[call-overload]


def test_the_best_is_found_within_five_percent_under_noise():
    """At least 19 of 20 searches end within 5 % of the true best."""
    good = 0
    for seed in range(20):
        found = search(Machine(seqs, seed))
        good += seqs(found.best) >= 0.95 * 1.4
    assert good >= 19


def test_the_defaults_stay_where_nothing_is_better():
    """Equal machines: at most 1 of 40 searches changes anything."""
    changed = [seed for seed in range(40) if search(Machine(lambda _: 1.0, seed)).best]
    assert len(changed) <= 1


def test_the_defaults_stay_where_everything_is_worse():
    assert not search(Machine(lambda p: 0.9 ** len(p))).best


def test_knobs_that_help_together_are_both_turned():
    both = search(Machine(lambda p: seqs(p) * (1.3 if "kv.prefix_cache" in p else 1.0), 3)).best
    assert both == {"kv.prefix_cache": False, "schedule.max_num_seqs": 32}


def test_what_the_last_comparison_does_not_confirm_is_dropped():
    """A machine that flatters the second of each first duel, and no longer at the end."""

    class Flattering(Machine):
        def measure(self, first: Point, second: Point, number: int) -> Pair:
            return Pair(1.5 if "kv.prefix_cache" not in second else 1.0 + number % 2 / 100, 1.0)

    turned = (Knob("schedule.max_num_seqs", (16,), ""), Knob("kv.prefix_cache", (False,), ""))
    kept = search(Flattering(lambda _: 1.0), turned[:1])
    assert kept.best == {"schedule.max_num_seqs": 16}

    class Fickle(Machine):
        def measure(self, first: Point, second: Point, number: int) -> Pair:
            self.asked.append((first, second))
            return Pair((1.5 if len(self.asked) <= 5 else 1.0) + len(self.asked) % 2 / 1000, 1.0)

    dropped = search(Fickle(lambda _: 1.0), turned[:1])
    assert dropped.trials[0].verdict is Verdict.BETTER
    assert dropped.trials[-1].knob == ""
    assert not dropped.best


def test_the_budget_is_kept_and_a_quarter_of_it_is_left_for_the_end():
    machine = Machine(seqs, noise=0.01)
    found = search(machine, budget=8.0)
    assert found.seconds <= 8.0
    assert found.is_out_of_time
    assert len(machine.asked) <= 8
    assert not found.best  # five pairs and then three: not confirmed, so not claimed
    whole = search(Machine(seqs, noise=0.01), budget=100.0)
    assert not whole.is_out_of_time
    assert whole.best == {"schedule.max_num_seqs": 32}


def test_a_question_that_stays_open_leaves_time_for_the_last_comparison():
    class Restless(Machine):
        def measure(self, first: Point, second: Point, number: int) -> Pair:
            if "kv.prefix_cache" in second:
                return Pair(1.5 if number % 2 else 0.7, 1.0)
            return Pair(1.3 + number % 2 / 1000, 1.0)

    turned = (Knob("schedule.max_num_seqs", (16,), ""), Knob("kv.prefix_cache", (False,), ""))
    found = search(Restless(lambda _: 1.0), turned, budget=24.0)
    assert found.is_out_of_time
    assert found.best == {"schedule.max_num_seqs": 16}


def test_what_was_found_is_confirmed_before_more_is_tried_and_a_short_budget_is_told_as_such():
    """Pairs of 10 s: five for the first knob, five for the last comparison, none for the second knob."""
    score: Callable[[Point], float] = lambda p: 2.0 if "kv.prefix_cache" in p else 1.0  # noqa: E731
    found = search(Machine(score, noise=0.01, pair_s=10.0), budget=100.0)
    assert found.best == {"kv.prefix_cache": False}
    assert [len(t.ratios) for t in found.trials] == [5, 0, 0, 5]
    assert found.is_out_of_time
    assert found.needed_s == 200.0
    assert "it takes --budget 200 or more" in report.conclusion(found)
    short = search(Machine(score, noise=0.01, pair_s=10.0), budget=70.0)
    assert not short.best
    assert [len(t.ratios) for t in short.trials] == [5, 0, 0, 2]
    assert short.needed_s == 70.0 + (5 + 5 + 3) * 10.0


def test_starting_servers_is_no_measuring(monkeypatch: pytest.MonkeyPatch):
    moments = [0.0]

    class Slow(live.LivePairs):
        def _server(self, point: Point) -> Any:
            moments[0] += 100.0

        async def _score(self, server: Any, plan: Any) -> float:
            moments[0] += 2.0
            return 1.0

    monkeypatch.setattr(live, "now_s", lambda: moments[0])
    pair = Slow("m", Plan(users=1)).measure(DEFAULT, {"kv.prefix_cache": False}, 0)
    assert pair.seconds == 4.0


def test_a_setting_that_is_refused_is_said_and_passed_over():
    def score(point: Point) -> float:
        if point.get("schedule.max_num_seqs") == 16:
            raise EngineDeadError("no memory | for that")
        return seqs(point)

    found = search(Machine(score, noise=0.01))
    assert found.best == {"schedule.max_num_seqs": 32}
    assert "refused: no memory / for that" in report.markdown(found, RULES)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.2, 1.21, 1.19, 1.2], Verdict.OPEN),
        ([1.2, 1.21, 1.19, 1.2, 1.2], Verdict.BETTER),
        ([0.8, 0.81, 0.79, 0.8, 0.8], Verdict.WORSE),
        ([1.01, 1.0101, 1.0099, 1.01, 1.01], Verdict.SAME),
        ([1.5, 0.7, 1.4, 0.8, 1.2], Verdict.OPEN),
    ],
)
def test_verdicts(ratios: list[float], verdict: Verdict):
    assert judge(ratios, Rules()) is verdict


def test_at_the_most_pairs_an_open_question_counts_as_no_gain():
    noisy = [1.5, 0.7, 1.4, 0.8, 1.2, 0.9]
    assert judge(noisy, Rules(most_pairs=6)) is Verdict.SAME
    assert judge(noisy, Rules(most_pairs=7)) is Verdict.OPEN


@pytest.mark.parametrize(
    ("confidence", "degrees", "point"),
    [
        # tables of Student's t, two-sided
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.99, 3, 5.841),
        (0.99, 4, 4.604),
        (0.99, 9, 3.250),
        (0.99, 29, 2.756),
        (0.998, 5, 5.893),
        (0.999, 10, 4.587),
        (0.95, 120, 1.980),
    ],
)
def test_points_of_student(confidence: float, degrees: int, point: float):
    assert student(confidence, degrees) == pytest.approx(point, rel=2e-3)


def test_points_of_student_agree_with_the_load_tools():
    assert [student(0.95, n) for n in range(4, 18)] == pytest.approx(T_975, rel=1e-3)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = random.Random(5)
    hits = 0
    for _ in range(2000):
        found = gain([math.exp(rng.gauss(0.1, 0.3)) for _ in range(6)], 0.9)
        hits += found.low <= math.exp(0.1) <= found.high
    assert 0.88 <= hits / 2000 <= 0.92


def test_every_knob_is_a_setting_with_other_values_than_its_default():
    turned = knobs(with_lossy=True)
    assert len(turned) >= 7
    for knob in turned:
        for value in knob.values:
            point = {knob.setting: value}
            section, _, name = knob.setting.partition(".")
            default = getattr(getattr(gather({}, None, {}).config, section), name)
            assert value != default
            assert gather(point, None, {}).config != gather({}, None, {}).config
            assert flags_of(point)
    assert {k.setting for k in turned} <= {k.setting for k in KNOBS}
    assert "kv.dtype" not in {k.setting for k in knobs(with_lossy=False)}
    with pytest.raises(RequestError, match=r"nothing to try for 'a\.b'"):
        knobs(with_lossy=True, only=("a.b",))


def test_ways_of_speculating_that_are_named_are_tried_and_found():
    turned = knobs(with_lossy=False, only=("speculate.method",), drafters=("early-exit=2", "draft=small"))
    assert [knob.values for knob in turned] == [("auto", "early-exit=2", "draft=small")]
    machine = Machine(
        lambda p: {"auto": 1.1, "draft=small": 1.5}.get(p.get("speculate.method"), 1.0), noise=0.02
    )
    found = search(machine, turned)
    assert found.best == {"speculate.method": "draft=small"}
    assert flags_of(found.best) == ("--speculate", "draft=small")
    with pytest.raises(ConfigError, match="must be one of"):
        knobs(with_lossy=False, drafters=("magic",))


def test_a_thread_fewer_is_tried_where_there_are_several():
    assert "device.threads" not in [knob.setting for knob in knobs(with_lossy=False)]
    turned = knobs(with_lossy=False, only=("device.threads",), num_threads=8)
    assert [(knob.setting, knob.values) for knob in turned] == [("device.threads", (7,))]
    found = search(Machine(lambda p: 1.2 if p.get("device.threads") == 7 else 1.0, noise=0.02), turned)
    assert found.best == {"device.threads": 7}
    assert flags_of(found.best) == ("--threads", "7")
    assert free_threads(["--threads=3"]) == free_threads(["--x", "--threads", "3"]) == 1
    assert free_threads(["--threads-x=3"]) == detect().threads


def test_a_search_from_settings_that_lack_something_turns_it_on(tmp_path: Path):
    start, rest = split_flags(["--no-enable-prefix-caching", "--threads=1", "--max-num-seqs", "16"])
    assert (start, rest) == ({"kv.prefix_cache": False, "schedule.max_num_seqs": 16}, ("--threads=1",))
    turned = knobs(with_lossy=False, start=start)
    assert [(k.setting, k.values) for k in turned[:2]] == [
        ("schedule.max_num_seqs", (32,)),
        ("kv.prefix_cache", (True,)),
    ]
    machine = Machine(lambda p: 2.0 if p["kv.prefix_cache"] else 1.0, noise=0.05)
    found = Search(machine.measure, RULES, 1e9, start=start).run(turned)
    assert found.best == {**start, "kv.prefix_cache": True}
    assert machine.asked[0][0] == start
    assert machine.asked[-1] == (start, found.best)
    text = report.settings_file(found, RULES, "x")
    assert "# Better than kv.prefix_cache = false, schedule.max_num_seqs = 16: kv.prefix_cache = true" in text
    (tmp_path / "tuned.yaml").write_text(text)
    assert gather({}, tmp_path / "tuned.yaml", {}).config.kv.prefix_cache is True
    same = Search(Machine(lambda _: 1.0, noise=0.01).measure, RULES, 1e9, start=start).run(turned)
    assert same.best == start
    assert "What was given stays (kv.prefix_cache = false" in report.conclusion(same)
    assert report.as_json(same, RULES)["start"] == start


def test_flags_are_read_as_serve_reads_them():
    point, rest = split_flags(
        ["--speculate=off", "--prefill-step-ms=100", "--enable-chunked-prefill", "--x", "1"]
    )
    assert point == {
        "speculate.method": "off",
        "schedule.prefill_step_ms": 100.0,
        "schedule.chunked_prefill": True,
    }
    assert rest == ("--x", "1")
    assert split_flags(flags_of(point)) == (point, ())
    with pytest.raises(RequestError, match="--max-num-seqs must be int, got 'x'"):
        split_flags(["--max-num-seqs", "x"])


def test_flags_are_those_of_serve():
    point: Point = {"kv.prefix_cache": False, "schedule.prefill_step_ms": 100.0, "schedule.max_num_seqs": 16}
    assert flags_of(point) == (
        *("--no-enable-prefix-caching", "--max-num-seqs", "16"),
        *("--prefill-step-ms", "100"),
    )
    assert flags_of(DEFAULT) == ()


def test_the_settings_file_is_one_that_serve_takes_with_the_evidence(tmp_path: Path):
    found = search(Machine(seqs, noise=0.01))
    text = report.settings_file(found, RULES, "a load\nof two lines")
    file = tmp_path / "tuned.yaml"
    file.write_text(text)
    assert gather({}, file, {}).config.schedule.max_num_seqs == 32
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("schedule.max_num_seqs = 32" in line and "better" in line for line in comments)
    stays = report.settings_file(search(Machine(lambda _: 1.0, noise=0.01)), RULES, "x")
    file.write_text(stays)
    assert gather({}, file, {}).config == gather({}, None, {}).config
    assert "The defaults stay" in stays


def test_json_has_every_ratio():
    found = search(Machine(seqs, noise=0.01))
    told = report.as_json(found, RULES)
    assert told["best"] == {"schedule.max_num_seqs": 32}
    assert [t["ratios"] for t in told["trials"]] == [t.ratios for t in found.trials]


def test_goodput_tells_two_servers_apart_that_miss_all():
    def summary(requests: float, good: float) -> Any:
        rates = type("Rates", (), {"requests": requests, "good_requests": good})
        return type("Summary", (), {"rates": rates})

    assert live.goodput(summary(10.0, 10.0)) == 10.0
    assert (
        0
        < live.goodput(summary(5.0, 0.0))
        < live.goodput(summary(10.0, 0.0))
        < live.goodput(summary(10.0, 1.0))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget must be above 0"),
        (["--most-pairs", "2"], "pairs must be"),
        (["--max-kl", "0"], "--max-kl must be above 0"),
        (["--only", "kv.dtype"], "nothing to try"),
        (["--slo", "x=1s"], "--slo"),
        (["--write", "/no-such-folder/x"], "the folder /no-such-folder is not there"),
        (["--json", "/no-such-folder/x"], "the folder /no-such-folder is not there"),
    ],
)
def test_wrong_flags_are_refused_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(["tune", "no-such-model", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
