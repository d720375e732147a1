"""`bench ablate` and `tune` on servers that they start: the right flags, ends, files."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headrace.base.errors import EngineDeadError
from headrace.cli.main import main
from headrace.cli.settings import gather
from headrace.tools.ablate import launch, run
from headrace.tools.ablate.techniques import OUTPUT, TECHNIQUES, Technique
from headrace.tools.bench.compare import FIGURES
from headrace.tools.bench.datasets.choose import DatasetChoice
from headrace.tools.bench.run import Plan, requests_of
from headrace.tools.tune import live
from headrace.tools.tune.divergence import EXACT, Loss
from headrace.tools.tune.live import LivePairs


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


def test_live_servers_are_measured_and_the_file_has_what_was_seen(smollm2_path: Path, tmp_path: Path):
    """What it finds is the machine's affair; that it measured, and wrote it down, is not."""
    written, told = tmp_path / "tuned.yaml", tmp_path / "tuned.json"
    arguments = [str(smollm2_path), "--budget", "120", "--only", "schedule.max_num_seqs", "--most-pairs", "5"]
    arguments += ["--num-requests", "2", "--concurrency", "2", "--input-tokens", "8", "--output-tokens", "4"]
    arguments += ["--flag=--threads=1", "--write", str(written), "--json", str(told)]
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    assert ended.value.code in (0, None)
    trials = json.loads(told.read_text())["trials"]
    assert [t["second"]["schedule.max_num_seqs"] for t in trials][:2] == [16, 32]
    assert all(len(t["ratios"]) == 5 and min(t["ratios"]) > 0 for t in trials)
    text = written.read_text()
    assert "2 text, closed loop, 2 users" in text
    assert "schedule.max_num_seqs = 16 | the defaults" in text
    gather({}, written, {})


def test_the_divergence_of_lossy_settings_is_measured_on_the_load(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A setting that changes no bit, taken for a lossy one, has none at all."""
    plan = Plan(dataset=DatasetChoice(num_talks=2, input_tokens=40, output_tokens=12), users=1, warmup=0)
    with LivePairs(str(smollm2_path), plan, ("--threads", "1")) as pairs:
        assert pairs.loss({"schedule.max_num_seqs": 2}) == EXACT
        assert not pairs._servers  # none is needed to know that
        loss = pairs.loss({"schedule.max_num_seqs": 2, "kv.dtype": "int8"})
        assert 1e-6 < loss.kl < 0.05
        assert 0.8 <= loss.same <= 1.0
        assert loss.places > 2 * 40
        monkeypatch.setattr(pairs, "_server", None)
        assert pairs.loss({"kv.dtype": "int8", "kv.prefix_cache": False}) is loss  # it is known
        monkeypatch.undo()
        monkeypatch.setattr(live, "lossy_of", lambda point: point)
        same = pairs.loss({"schedule.max_num_seqs": 2, "kv.prefix_cache": False})
        assert same == Loss(0.0, 0.0, 1.0, loss.places)


def test_a_server_that_starts_with_no_settings_ends_the_search(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["tune", "no-such-model", "--budget", "5"])
    assert ended.value.code == 1
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["doctor", "--record"], ["bench", "ablate", "m", "--json"]])
def test_a_folder_that_is_not_there_is_refused_first(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "/no-such-folder/x"])
    assert ended.value.code == 2
    assert "the folder /no-such-folder is not there" in capsys.readouterr().err
