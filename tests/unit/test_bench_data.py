"""What `headrace bench` asks, and what it shows: data sets, files, tables, charts, flags."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from headrace.base.errors import ConfigError, RequestError, UnreachableError
from headrace.cli.main import build
from headrace.tools.bench import offline
from headrace.tools.bench.arrivals import recorded
from headrace.tools.bench.ask import Counts, Failure, Outcome
from headrace.tools.bench.compare import Comparison, figures_of
from headrace.tools.bench.datasets.choose import DatasetChoice, choose
from headrace.tools.bench.datasets.made import MADE, lengths
from headrace.tools.bench.drive import Load
from headrace.tools.bench.ramp import Ramp, Step
from headrace.tools.bench.report import charts, plot, tables
from headrace.tools.bench.summary import summarize
from headrace.tools.bench.text import CHARS_PER_TOKEN
from headrace.tools.bench.wire import Client
from tests.kit.virtual import Script, Scripted, run, stream, usage


def texts(talk) -> str:
    return "".join(m["content"] for turn in talk.turns for m in turn.messages)


@pytest.mark.parametrize("name", sorted(MADE))
def test_made_requests_depend_on_the_seed_and_have_the_lengths_asked_for(name):
    ask = {"name": name, "num_talks": 6, "input_tokens": 200, "output_tokens": 12}
    first, again, other = (choose(DatasetChoice(**ask, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({texts(talk)[-500:] for talk in first}) == 6
    assert {turn.max_tokens for talk in first for turn in talk.turns} == {12}
    for talk in first:
        for turn in talk.turns:
            size = len(turn.messages[-1]["content"]) / CHARS_PER_TOKEN
            assert 0.5 * 200 < size < 1.2 * 200


def test_prefixes_are_shared_and_turns_are_as_many_as_asked():
    shared = choose(DatasetChoice("shared-prefix", num_talks=6, num_prefixes=2, prefix_tokens=100))
    prefixes = [talk.turns[0].messages[0]["content"] for talk in shared]
    assert len(set(prefixes)) == 2
    assert prefixes[0] == prefixes[2] == prefixes[4]
    assert 90 * CHARS_PER_TOKEN < len(prefixes[0]) < 110 * CHARS_PER_TOKEN
    assert {len(talk.turns) for talk in choose(DatasetChoice("multi-turn", turns=3))} == {3}
    assert {len(talk.turns) for talk in choose(DatasetChoice("multi-turn"))} == {4}
    assert len(choose(DatasetChoice())) == 64


def test_spread_lengths_keep_their_mean_and_do_not_depend_on_the_seed():
    assert lengths(100, 0.0, 3, 0) == [100] * 3
    many = lengths(100, 0.5, 4000, 0)
    mean = sum(many) / 4000
    assert mean == pytest.approx(100, rel=0.03)
    assert math.sqrt(sum((n - mean) ** 2 for n in many) / 4000) == pytest.approx(50, rel=0.1)
    outs = [
        [talk.turns[0].max_tokens for talk in choose(DatasetChoice(num_talks=9, spread=0.5, seed=seed))]
        for seed in (1, 2)
    ]
    assert outs[0] == outs[1]
    assert len(set(outs[0])) > 5


def test_a_sharegpt_file(tmp_path: Path):
    file = tmp_path / "share.json"
    said = [
        ("human", "hello"),
        ("gpt", "x" * 44),
        ("human", "more"),
        ("gpt", "y" * 88),
        ("human", "unanswered"),
    ]
    file.write_text(json.dumps([{"conversations": [{"from": who, "value": text} for who, text in said]}]))
    (short,) = choose(DatasetChoice(str(file)))
    assert [(t.messages[0]["content"], t.max_tokens) for t in short.turns] == [("hello", 10)]
    (whole,) = choose(DatasetChoice(str(file), turns=5))
    assert [(t.messages[0]["content"], t.max_tokens) for t in whole.turns] == [("hello", 10), ("more", 20)]
    (fixed,) = choose(DatasetChoice(str(file), output_tokens=7))
    assert fixed.turns[0].max_tokens == 7


def write_lines(path: Path, *entries) -> DatasetChoice:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    return DatasetChoice(str(path))


def test_lines_of_json_and_a_sample_of_them(tmp_path: Path):
    entries = [{"prompt": f"p{i}", "max_tokens": i + 1} for i in range(9)]
    whole = write_lines(tmp_path / "a.jsonl", *entries, {"messages": [{"role": "user", "content": "m"}]})
    talks = choose(whole)
    assert {(texts(t), t.turns[0].max_tokens) for t in talks} == {(f"p{i}", i + 1) for i in range(9)} | {
        ("m", 128)
    }
    some = choose(DatasetChoice(whole.name, num_talks=4, seed=3))
    assert len({texts(t) for t in some}) == 4
    assert some == choose(DatasetChoice(whole.name, num_talks=4, seed=3))
    with pytest.raises(RequestError, match="holds 10 requests and 11 are asked for"):
        choose(DatasetChoice(whole.name, num_talks=11))


def test_traces_keep_their_order_and_times(tmp_path: Path):
    ours = write_lines(
        tmp_path / "a.jsonl", *({"prompt": f"p{at}", "at_s": at} for at in (5.0, 6.0, 6.0, 9.0))
    )
    talks = choose(DatasetChoice(ours.name, num_talks=3))
    assert [texts(t) for t in talks] == ["p5.0", "p6.0", "p6.0"]
    assert recorded(talks, 2.0) == [0.0, 0.5, 0.5]
    lines = [
        {"timestamp": 1000 * i, "input_length": 700, "output_length": 5, "hash_ids": [1, 2 + i]}
        for i in range(2)
    ]
    first, second = choose(write_lines(tmp_path / "mooncake.jsonl", *lines))
    assert (first.at_s, second.at_s, second.turns[0].max_tokens) == (0.0, 1.0, 5)
    common = int(500 * CHARS_PER_TOKEN)
    assert texts(first)[:common] == texts(second)[:common]
    assert texts(first) != texts(second)
    assert len(texts(first)) == int(700 * CHARS_PER_TOKEN)


def test_traces_that_have_no_order_are_refused(tmp_path: Path):
    backwards = choose(write_lines(tmp_path / "a.jsonl", *({"prompt": "p", "at_s": at} for at in (2.0, 1.0))))
    with pytest.raises(RequestError, match="entry 2 of the trace comes before"):
        recorded(backwards, 1.0)
    with pytest.raises(RequestError, match="no at_s"):
        recorded(choose(DatasetChoice(num_talks=1)), 1.0)
    with pytest.raises(RequestError, match="--speed"):
        recorded(backwards, 0.0)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "[1]", '[{"x": 1}]', '[{"messages": []}]', '[{"prompt": "p", "max_tokens": -1}]',
     '[{"conversations": []}]', '[{"conversations": [{"from": "alien", "value": ""}]}]'],
)  # fmt: skip
def test_files_that_hold_no_requests_are_refused_by_name(text, tmp_path: Path):
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(RequestError, match=r"broken\.json"):
        choose(DatasetChoice(str(file)))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"num_talks": 0}, "--num-requests"),
        ({"input_tokens": 0}, "--input-tokens"),
        ({"spread": 4.0}, "--spread"),
        ({"turns": 2}, "--turns"),
        ({"name": "nowhere"}, "shared-prefix"),
    ],
)
def test_choices_out_of_range_are_refused(wrong, word):
    with pytest.raises(RequestError, match=word):
        choose(DatasetChoice(**wrong))


# ---- what is shown ----


def load() -> Load:
    good = [Outcome(i / 2, i / 2, [i + 1.0, i + 2.0], i + 2.5, Counts(10, 4, 2, True), "t") for i in range(3)]
    return Load(
        [*good, Outcome(1.0, 1.0, end_s=1.5, failure=Failure.CUT, detail="gone <&>")], 0.0, 5.0, [0.0]
    )


def test_json_holds_figures_and_every_request():
    facts = tables.summary_json(summarize(load()))
    assert facts["ttft_ms"]["p50"] == 1500.0
    assert facts["ttft_ms"]["count"] == 3
    assert facts["rates"]["output_tokens"] == 12 / 5
    assert facts["failures"] == {"cut": 1}
    rows = tables.requests_json(load())
    assert rows[1]["events_s"] == [2.0, 3.0]
    assert (rows[1]["ttft_ms"], rows[1]["tpot_ms"], rows[1]["e2el_ms"]) == (1500.0, 1000 / 3, 2500.0)
    assert rows[3] | {"failure": "cut", "detail": "gone <&>"} == rows[3]
    assert "ttft_ms" not in rows[3]
    json.dumps(rows)


def test_markdown_holds_every_figure():
    text = tables.summary_markdown(summarize(load()))
    assert "| requests completed | 3 of 4 (1 cut) |" in text
    assert "| output tokens/s | 2.40 |" in text
    assert re.search(r"\| TTFT \| 1500.00 \|.*\| 2000.00 \|", text)
    assert "- 1 of 4 requests failed" in text


def whole_ramp() -> Ramp:
    summary = summarize(load())
    return Ramp("users", (Step(1, summary, 1.0, "", True), Step(2, summary, 1.0, "full", False)))


def whole_comparison() -> Comparison:
    summary = summarize(load())
    pairs = [(summary, summary)] * 5
    return Comparison(tuple(figures_of(pairs)), tuple(pairs))


def test_ramps_and_comparisons_are_told_in_words():
    text = tables.ramp_markdown(whole_ramp())
    assert "The highest level that held: 1 users. Saturated at 2 users: full." in text
    assert tables.ramp_json(whole_ramp())["sustained"] == 1
    assert "| load (users) | answered (requests/s) |" in text
    assert "| within the SLO | saturated because |" in text
    broken_off = replace(whole_ramp(), is_cut=True)
    assert "held: 1 users. Interrupted: higher levels were not tried." in tables.ramp_markdown(broken_off)
    compared = tables.comparison_markdown(whole_comparison())
    assert "| B better by a factor of |" in compared
    assert compared.count("no difference shown") == 7
    assert "5 of A, 5 of B" in compared
    facts = tables.comparison_json(whole_comparison())
    assert {row["verdict"] for row in facts["figures"]} == {"no difference shown"}
    assert (len(facts["pairs"]), facts["figures"][0]["ratio"]) == (5, 1.0)


@pytest.mark.parametrize(
    "drawn", [charts.of_load(load()), charts.of_ramp(whole_ramp()), charts.of_comparison(whole_comparison())]
)
def test_charts_are_one_page_that_needs_nothing(drawn, tmp_path: Path):
    plot.write(tmp_path / "p.html", "A <title>", drawn, "text & table")
    page = (tmp_path / "p.html").read_text()
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(figures) == len(drawn) >= 1
    for figure, chart in zip(figures, drawn, strict=True):
        tree = ElementTree.fromstring(figure)
        assert len([e for e in tree.iter() if e.tag == "path"]) == 1 + len(chart.series)
        numbers = [float(n) for e in tree.iter("path") for n in re.findall(r"[\d.]+", e.get("d") or "")]
        assert all(0 <= n <= plot.WIDTH for n in numbers)
    assert not re.search(r"https?://|<script|<link|src=", page)
    assert "A &lt;title&gt;" in page
    assert "text &amp; table" in page


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [((0, 100), [0, 20, 40, 60, 80, 100]), ((0, 617), [0, 200, 400, 600]), ((0.6, 1.15), [0.6, 0.8, 1.0])],
)
def test_axes_have_round_numbers(limits, wanted):
    assert plot.ticks(*limits) == pytest.approx(wanted)


def test_charts_hold_the_figures():
    by_title = {chart.title: chart for chart in charts.of_load(load())}
    assert by_title["TTFT, cumulative"].series[0].points[-1] == (2000.0, 100.0)
    names = [series.name for series in by_title["Requests over time"].series]
    assert names == ["to the first token", "answer", "failed"]
    rate = by_title["Output over time"].series[0].points
    assert sum(y for _, y in rate) * 5 / 50 == pytest.approx(12)


def test_pictures_need_matplotlib_and_known_endings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plot.write(tmp_path / "p.png", "t", charts.of_load(load()), "")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(RequestError, match="must end in"):
        plot.check(tmp_path / "p.gif")
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match="needs matplotlib"):
        plot.check(tmp_path / "p.png")
    plot.check(tmp_path / "p.html")


# ---- in this process ----


class Words:
    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        assert not add_special
        return [len(word) for word in text.split()]


class CountingEngine:
    """Takes 2 s for the first call, which warms up, and half a second more for each later one."""

    tokenizer = Words()

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list = []

    def generate(self, prompts, params, *, progress):
        self.calls.append((prompts, params))
        self.now += 1.5 + 0.5 * len(self.calls)
        usage = [type("U", (), {"prompt_tokens": 10, "cached_tokens": 1, "completion_tokens": p.max_tokens})
                 for p in params]  # fmt: skip
        return [type("R", (), {"usage": u}) for u in usage]


def test_throughput_of_an_engine_in_this_process():
    engine = CountingEngine()
    choice = DatasetChoice(num_talks=4, input_tokens=20, output_tokens=5)
    found = offline.throughput(engine, choice, 3, clock=lambda: engine.now)
    assert [run.seconds for run in found.runs] == [2.5, 3.0, 3.5]  # the warm-up is left out
    assert [run.output_rate for run in found.runs] == [20 / 2.5, 20 / 3.0, 20 / 3.5]
    assert found.total_rate.p50 == 60 / 3.0
    assert len({prompts[0] for prompts, _ in engine.calls}) == 4  # texts of their own
    assert all(p.ignore_eos and p.temperature == 0 for _, params in engine.calls for p in params)
    assert "| seconds | 3.000 | 2.500 | 3.500 |" in found.markdown()
    assert found.json()["runs"][0]["cached_tokens"] == 4


def test_latency_asks_for_exactly_so_many_tokens():
    engine = CountingEngine()
    found = offline.latency(engine, offline.Batch(3, 33, 7), 2, clock=lambda: engine.now)
    assert [len(ids) for prompts, _ in engine.calls for ids in prompts] == [33] * 9
    assert found.seconds.mean == 2.75
    assert found.runs[0].output_tokens == 21


def test_every_figure_of_an_engine_in_this_process_equals_the_hand_computed_value():
    """Two repetitions of 2.5 and 3 s: 3 requests, each of 10 tokens in (1 cached) and 7 out."""
    engine = CountingEngine()
    found = offline.latency(engine, offline.Batch(3, 33, 7), 2, clock=lambda: engine.now).json()
    assert [list(run.values()) for run in found["runs"]] == [[2.5, 3, 30, 3, 21], [3.0, 3, 30, 3, 21]]
    for name, (first, second) in {
        "seconds": (2.5, 3.0),
        "output_tokens_per_s": (21 / 3.0, 21 / 2.5),
        "total_tokens_per_s": (51 / 3.0, 51 / 2.5),
    }.items():
        spread, gap = found[name], second - first
        assert (spread["count"], spread["min"], spread["max"]) == (2, first, second)
        assert spread["mean"] == pytest.approx((first + second) / 2, rel=1e-12)
        assert spread["std"] == pytest.approx(gap / 2, rel=1e-12)
        for share, part in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}.items():
            assert spread[share] == pytest.approx(first + part * gap, rel=1e-12)


@pytest.mark.parametrize("wrong", [offline.Batch(0), offline.Batch(1, 0), offline.Batch(1, 1, 0)])
def test_batches_out_of_range_are_refused(wrong):
    with pytest.raises(RequestError, match="--"):
        offline.latency(CountingEngine(), wrong, 1)


def test_throughput_refuses_turns_and_repetitions_out_of_range():
    with pytest.raises(RequestError, match="one turn"):
        offline.throughput(CountingEngine(), DatasetChoice("multi-turn"), 1)
    with pytest.raises(RequestError, match="--repeat"):
        offline.throughput(CountingEngine(), DatasetChoice(), 0)


# ---- flags ----


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch):
    """Commands ask a scripted server in virtual time: first token after 0.5 s, end after 1 s; B in half."""
    listing = b'{"data": [{"id": "served"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listing)
    servers: dict[int, Scripted] = {}

    def client(target):
        pace = 1.0 if target.port < 2 else 0.5

        def script(body, number):
            if not body:
                return Script([(0.0, head + listing)], 0.0)
            return stream([0.5 * pace, pace], usage(8, body["max_tokens"]), pace)

        server = servers.setdefault(target.port, Scripted(script))
        return Client(target, server.connect)

    monkeypatch.setattr("headrace.tools.bench.wire.Client", client)
    monkeypatch.setattr("asyncio.run", run)
    return servers


def bench(*flags: str) -> str:
    done = CliRunner().invoke(build(["bench"]), ["bench", *flags], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


SMALL = ("--num-requests", "4", "--output-tokens", "3", "--concurrency", "2")


def test_serve_measures_and_writes_what_was_asked(scripted, tmp_path: Path):
    files = {kind: tmp_path / f"f.{kind}" for kind in ("json", "md", "html")}
    named = ("--json", str(files["json"]), "--markdown", str(files["md"]), "--plot", str(files["html"]))
    text = bench("serve", "--url", "h:1", *SMALL, "--slo", "ttft=500ms", "--extra", '{"top_p": 0.5}', *named)
    facts = json.loads(files["json"].read_text())
    assert facts["rates"]["output_tokens"] == 12 / 2
    assert (facts["ttft_ms"]["p99"], facts["tpot_ms"]["p99"], facts["rates"]["good_share"]) == (
        500.0,
        250.0,
        1.0,
    )
    assert len(facts["requests"]) == 4
    assert text in files["md"].read_text()
    assert "served at h:1" in files["html"].read_text()
    bodies = [b for b in scripted[1].bodies if b]
    assert len(bodies) == 2 + 4  # the warm-up is sent and not measured
    assert all(b["model"] == "served" and b["top_p"] == 0.5 and b["ignore_eos"] for b in bodies)


def test_open_loops_and_their_flags_reach_the_wire(scripted):
    loop = (
        "--num-requests",
        "6",
        "--output-tokens",
        "3",
        "--rate",
        "2",
        "--arrivals",
        "bursts",
        "--burst-size",
        "3",
    )
    bench("serve", "--url", "h:1", "--model", "m", "--no-ignore-eos", "--warmup", "0", *loop)
    assert scripted[1].came_s == [0.0, 0.0, 0.0, 1.5, 1.5, 1.5]
    assert all("ignore_eos" not in body for body in scripted[1].bodies)


def test_traces_are_replayed(scripted, tmp_path: Path):
    trace = write_lines(tmp_path / "t.jsonl", *({"prompt": "p", "at_s": at} for at in (3.0, 4.0, 8.0)))
    flags = ("--dataset", trace.name, "--replay", "2", "--endpoint", "completions")
    bench("serve", "--url", "h:1", "--model", "m", "--warmup", "0", *flags)
    assert scripted[1].came_s == [0.0, 0.5, 2.5]
    assert [body["prompt"] for body in scripted[1].bodies] == ["p"] * 3


def test_a_ramp_and_a_comparison_are_told(scripted, tmp_path: Path):
    facts = json.loads(bench("serve", "--url", "h:1", *SMALL, "--ramp", "--json", "-"))
    assert [step["level"] for step in facts["steps"]] == [2, 4, 8]
    assert facts["sustained"] == 4  # four requests keep at most four users busy
    page = tmp_path / "c.html"
    text = bench("compare", "h:1", "h:2", *SMALL, "--pairs", "5", "--plot", str(page))
    assert "| output (tok/s) | 6 | 12 | 2.000 | 2.000 to 2.000 | B is better by 100.0% |" in text
    assert page.read_text().count("<svg") == 1


@pytest.mark.parametrize("what", ["throughput", "latency"])
def test_an_engine_in_this_process_has_all_settings_of_engines(what, monkeypatch: pytest.MonkeyPatch):
    made = []

    class Made(CountingEngine):
        def __init__(self, config):
            super().__init__()
            made.append(config)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("headrace.engine.llm.LLM", Made)
    flags = ("--speculate", "ngram,depth=3", "--threads", "1", "--block-size", "32", "--max-num-seqs", "5")
    bench(what, "some.gguf", *flags, "--repeat", "1", "--input-tokens", "20", "--output-tokens", "3")
    config = made[0]
    assert config.speculate.method == "ngram,depth=3"
    assert (config.model.model, config.device.threads) == ("some.gguf", 1)
    assert (config.kv.block_size, config.schedule.max_num_seqs) == (32, 5)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("serve --rate 2 --concurrency 2", "--replay"),
        ("serve --arrivals constant", "--arrivals goes with --rate"),
        ("serve --rate 1 --arrivals often", "poisson"),
        ("serve --slo ttft=5", "--slo"),
        ("serve --dataset nowhere", "no data set 'nowhere'"),
        ("serve --plot x.gif", "--plot"),
        ("serve --json /nowhere/x.json", "/nowhere"),
        ("serve --extra [1]", "--extra must be a JSON object"),
        ("serve --extra {", "--extra is no JSON"),
        ("serve --endpoint chats", "--endpoint"),
        ("serve --timeout 0", "--timeout"),
        ("serve --url ftp://x", "ftp://x"),
        ("compare 127.0.0.1:1 127.0.0.1:2 --pairs 4", "--pairs"),
    ],
)
def test_flags_that_make_no_sense_are_refused_in_words(flags, word):
    done = CliRunner().invoke(build(["bench"]), ["bench", *flags.split()])
    assert isinstance(done.exception, (RequestError, ConfigError))
    assert word in str(done.exception)


def test_a_server_that_is_not_there_is_no_wrong_flag():
    done = CliRunner().invoke(build(["bench"]), ["bench", "serve", "--url", "127.0.0.1:1"])
    assert isinstance(done.exception, UnreachableError)
    assert "no server answers at http://127.0.0.1:1" in str(done.exception)
