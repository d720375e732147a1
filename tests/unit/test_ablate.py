"""`bench ablate`: what is switched, how servers start and end, what the table says."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.techniques import put
from headrace.base.errors import EngineDeadError, RequestError
from headrace.cli.main import main
from headrace.tools.ablate import launch, run, table
from headrace.tools.ablate.run import Effect
from headrace.tools.ablate.techniques import OUTPUT, TECHNIQUES, Technique, chosen
from headrace.tools.bench.bootstrap import interval
from headrace.tools.bench.compare import FIGURES, Compared, Comparison
from headrace.tools.bench.datasets.choose import DatasetChoice
from headrace.tools.bench.run import Plan, requests_of


def effect(*ratios: float, technique: Technique = TECHNIQUES[0]) -> Effect:
    rows = (Compared(technique.figure, 50.0, 1234.5, interval(ratios)),)
    return Effect(technique=technique, comparison=Comparison(rows, ()))


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_every_technique_can_be_measured(
    technique: Technique, smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert technique.figure in {figure.title for figure in FIGURES}
    assert requests_of(technique.plan)[0]
    assert technique.off != technique.on
    for flags in (technique.off, technique.on):
        with pytest.raises(SystemExit) as ended:
            main(["serve", str(smollm2_path), "--check", *flags])
        assert ended.value.code == 0, capsys.readouterr().err


def test_names_choose_and_unknown_ones_are_refused():
    assert chosen(()) == TECHNIQUES
    assert [t.name for t in chosen(("prefix cache", "batching"))] == ["batching", "prefix cache"]
    with pytest.raises(RequestError, match="no technique 'magic'; known: batching, continuous"):
        chosen(("magic",))


def test_the_table_shows_a_gain_only_where_there_is_one():
    text = table.markdown([effect(2.0, 2.1, 1.9, 2.0, 2.0), effect(1.1, 0.9, 1.0, 1.05, 0.95)])
    rows = text.splitlines()[2:]
    assert "| 50 | 1,234 | **2.00** |" in rows[0]
    assert "1.00, no difference shown" in rows[1]
    assert "**" not in rows[1]
    figures = table.as_json([effect(2.0, 2.0, 2.0, 2.0, 2.0)])[0]["figures"]
    assert (figures[0]["without"], figures[0]["with"]) == (50.0, 1234.5)
    assert figures[0]["ratio"] == pytest.approx(2.0)


def test_a_figure_that_no_pair_gave_is_said():
    technique = TECHNIQUES[0]
    with pytest.raises(RequestError, match="no output"):
        _ = Effect(technique=technique, comparison=Comparison((), ())).chief


def test_a_server_that_does_not_start_says_why():
    with (
        pytest.raises(EngineDeadError, match=r"did not start: .*no-such-model"),
        launch.serving("no-such-model", ()),
    ):
        pytest.fail("it started")


def test_a_server_ends_with_its_block(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            started.append(self)

    monkeypatch.setattr(launch.subprocess, "Popen", Noted)
    urls: list[str] = []
    with suppress(KeyError), launch.serving(str(smollm2_path), ("--threads", "1")) as url:
        urls.append(url)
        assert started[0].poll() is None
        raise KeyError
    assert urls[0].startswith("http://127.0.0.1:")
    assert started[0].poll() is not None


def test_the_first_server_is_without_the_technique_and_the_second_with_it(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, ...]] = []

    @contextmanager
    def noted(model: str, flags: Sequence[str]) -> Iterator[str]:
        given.append(tuple(flags))
        with launch.serving(model, flags) as url:
            yield url

    monkeypatch.setattr(run, "serving", noted)
    technique = Technique(
        name="batching",
        attacks="",
        plan=Plan(dataset=DatasetChoice(num_talks=2, input_tokens=8, output_tokens=4), users=2, warmup=0),
        figure=OUTPUT,
        off=("--max-num-seqs", "1"),
        on=("--max-num-seqs", "2"),
    )
    told: list[tuple[int, str]] = []
    watch = run.Watch(on_half=lambda _, number, side: told.append((number, side)))
    (found,) = asyncio.run(run.ablate(str(smollm2_path), [technique], 5, ("--threads", "1"), watch))
    assert given == [("--threads", "1", *technique.off), ("--threads", "1", *technique.on)]
    assert told[:3] == [(0, "without"), (0, "with"), (1, "with")]
    assert found.chief.a > 0
    assert found.chief.b > 0
    assert [s.completed for pair in found.comparison.pairs for s in pair] == [2] * 10


def test_too_few_pairs_are_refused_before_a_server_starts():
    with pytest.raises(RequestError, match="pairs"):
        asyncio.run(run.ablate("no-such-model", TECHNIQUES, 2))


def test_the_page_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    page = "a\n<!-- begin:techniques -->\nold\n<!-- end:techniques -->\nb\n"
    assert put(page, "new\n") == "a\n<!-- begin:techniques -->\nnew\n<!-- end:techniques -->\nb\n"
    with pytest.raises(ValueError, match="no <!-- begin"):
        put("nothing", "new")
    source, target = tmp_path / "t.md", tmp_path / "page.md"
    source.write_text("table\n")
    target.write_text(page)
    command = [sys.executable, "-m", "benchmarks.techniques", str(source), str(target)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    assert "\ntable\n" in target.read_text()
