"""`bench ablate`: what is switched, how servers start and end, what the table says."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.techniques import put
from headrace.base.errors import RequestError
from headrace.tools.ablate import run, table
from headrace.tools.ablate.run import Effect
from headrace.tools.ablate.techniques import TECHNIQUES, Technique, chosen
from headrace.tools.bench.bootstrap import interval
from headrace.tools.bench.compare import Compared, Comparison


def effect(*ratios: float, technique: Technique = TECHNIQUES[0]) -> Effect:
    rows = (Compared(technique.figure, 50.0, 1234.5, interval(ratios)),)
    return Effect(technique=technique, comparison=Comparison(rows, ()))


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
