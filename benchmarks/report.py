"""Tables and plots from the JSON file. Figures in docs/benchmarks.md are written by this and never by hand.

python -m benchmarks.report results/bench.json [--write]
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bare import OURS, STEPS, THEIRS, work_of
from benchmarks.costs import ModelCost
from benchmarks.figures import Limits, Ratio, best, floor, limits_from, middle, ratio, share
from benchmarks.growth import fit, least_slope, step_ms
from benchmarks.served import FIGURES, Figure
from benchmarks.store import ROOT

PAGE = ROOT / "docs/benchmarks.md"
QUIET = 0.1
"""Cores that others may take before a figure is marked."""
BARE = ("prefill", "decode", "batch")


@dataclass(frozen=True)
class Cell:
    """One measurement over all pairs: values by engine, ratio to the best peer, share of the limit."""

    model: str
    name: str
    unit: str
    values: dict[str, float]
    ratio: Ratio | None
    shares: dict[str, float]
    limit: str
    disturbed: float


def bare_cells(data: dict) -> list[Cell]:
    """Cells of Headrace in process against llama-bench."""
    cells = []
    rows = [r for r in data["rows"] if r["part"] in BARE]
    for model, part, name in _ordered((r["model"], r["part"], r["cell"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["cell"]) == (model, name)]
        by_engine = {who: {r["pair"]: r for r in mine if r["who"] == who} for who in (OURS, THEIRS)}
        values = {
            who: statistics.median(r["tok/s"] for r in of.values()) for who, of in by_engine.items() if of
        }
        pairs = sorted(set(by_engine[OURS]) & set(by_engine[THEIRS]))
        compared = None
        if pairs:
            compared = ratio(
                [by_engine[OURS][p]["tok/s"] for p in pairs], [by_engine[THEIRS][p]["tok/s"] for p in pairs]
            )
        shares, limit = _shares(data, model, part, name, values)
        cells.append(
            Cell(model, name, "tok/s", values, compared, shares, limit, max(r["other cores"] for r in mine))
        )
    return cells


def _shares(
    data: dict, model: str, part: str, name: str, values: dict[str, float]
) -> tuple[dict[str, float], str]:
    limits = limits_of(data, model, part)
    known = dict(data["costs"].get(model, {}))
    step_tokens = known.pop("step_tokens", 512)
    if limits is None or not known:
        return {}, ""
    work, tokens = work_of(name, ModelCost(**known), step_tokens)
    return {who: share(work, limits, tokens / v) for who, v in values.items()}, floor(work, limits).limit


def limits_of(data: dict, model: str | None = None, part: str | None = None) -> Limits | None:
    """The median of the probes around a block; of all probes without a block of that name."""
    probes = [r for r in data["rows"] if r["part"] == "limits"]
    near = [r for r in probes if (r["model"], r["cell"]) == (model, part)]
    found = [limits_from(r) for r in near or probes]
    return middle(found) if found else None


def served_cells(data: dict) -> list[tuple[str, Cell]]:
    """(workload, cell) of servers under load; the ratio is to the best peer of each pair."""
    cells = []
    rows = [r for r in data["rows"] if r["part"] == "served"]
    for model, workload in _ordered((r["model"], r["cell"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["cell"]) == (model, workload)]
        disturbed = max(r["other cores"] for r in mine)
        for figure in FIGURES[workload]:
            values, compared = _against_best(mine, figure)
            cells.append(
                (
                    workload,
                    Cell(model, figure.name, figure.unit, values, compared, {}, "", disturbed),
                )
            )
    return cells


def _against_best(rows: list[dict], figure: Figure) -> tuple[dict[str, float], Ratio | None]:
    by_engine: dict[str, dict[int, float]] = {}
    for r in rows:
        by_engine.setdefault(r["who"], {})[r["pair"]] = r[figure.name]
    values = {who: statistics.median(of.values()) for who, of in by_engine.items()}
    peers = [of for who, of in by_engine.items() if who != OURS]
    if OURS not in by_engine or not peers:
        return values, None
    pairs = sorted(set(by_engine[OURS]).intersection(*peers))
    if not pairs:
        return values, None
    ours = [by_engine[OURS][p] for p in pairs]
    theirs = [best([of[p] for of in peers], higher=figure.higher) for p in pairs]
    return values, ratio(ours, theirs, higher=figure.higher)


def _ordered(keys: Iterable[tuple]) -> list[tuple]:
    """Distinct keys in order of appearance."""
    return list(dict.fromkeys(keys))


# ---- Markdown ----


def limits_table(data: dict) -> str:
    """The probes of the run, with their drift."""
    probes = [limits_from(r) for r in data["rows"] if r["part"] == "limits"]
    if not probes:
        return "No probe was run."
    lines = ["| limit | median | least | most | probes |", "|---|---|---|---|---|"]
    for label, values in (
        ("read, 512 MB (GB/s)", [p.read_large for p in probes]),
        ("read, 96 MB (GB/s)", [p.read_small for p in probes]),
        ("float32 multiply-add (Gop/s)", [p.float_ops for p in probes if p.float_ops]),
        ("int8 multiply-add (Gop/s)", [p.int8_ops for p in probes if p.int8_ops]),
    ):
        if values:
            shown = [f"{v / 1e9:.1f}" for v in (statistics.median(values), min(values), max(values))]
            lines.append(f"| {label} | {' | '.join(shown)} | {len(values)} |")
    return "\n".join(lines)


def bare_table(data: dict) -> str:
    """Headrace in process against llama-bench."""
    lines = [
        "| model | tokens | Headrace tok/s | of limit | llama.cpp tok/s | of limit | ratio | range | pairs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in bare_cells(data):
        columns = [c.model, c.name]
        for who in (OURS, THEIRS):
            columns += [_number(c.values.get(who)), _share(c.shares.get(who), c.limit)]
        lines.append(f"| {' | '.join(columns + _ratio(c))} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured."


def depth_table(data: dict) -> str:
    """Time of a token over the depth of its context, as a line, and its slope against reading the keys."""
    lines = [
        "| model | engine | a (ms) | b (us per 1,000 tokens) | reading KV (us) | b / reading |",
        "|---|---|---|---|---|---|",
    ]
    for (model, who), speeds in _by_number(data, "decode").items():
        known, limits = dict(data["costs"].get(model, {})), limits_of(data, model, "decode")
        known.pop("step_tokens", None)
        if len(speeds) < 3 or not known or limits is None:
            continue
        depths = [d + STEPS / 2 for d in speeds]
        line = fit(depths, [1 / v for v in speeds.values()])
        least = least_slope(ModelCost(**known), limits, max(depths))
        lines.append(
            f"| {model} | {who} | {line.base * 1e3:.2f} | {line.slope * 1e9:.0f} | {least * 1e9:.0f} "
            f"| {line.slope / least:.2f} |"
        )
    return "\n".join(lines) if len(lines) > 2 else "Not measured."


def batch_table(data: dict) -> str:
    """Time of a step over the number of its sequences, each with a prompt of its own."""
    found = {key: step_ms(speeds) for key, speeds in _by_number(data, "own").items() if len(speeds) > 1}
    sizes = sorted({n for steps in found.values() for n in steps})
    if not found:
        return "Not measured."
    head = ["model", "engine", *(f"{n} (ms)" for n in sizes)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (model, who), steps in found.items():
        times = [f"{steps[n]:.1f}" if n in steps else "-" for n in sizes]
        lines.append(f"| {' | '.join([model, who, *times])} |")
    return "\n".join(lines)


def _by_number(data: dict, kind: str) -> dict[tuple[str, str], dict[int, float]]:
    """Median tokens a second of cells such as `decode 2048`, by (model, engine), then by number."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for cell in bare_cells(data):
        name, number = cell.name.split()
        if name == kind:
            for who, value in cell.values.items():
                found.setdefault((cell.model, who), {})[int(number)] = value
    return found


def served_table(data: dict) -> str:
    """Servers under load."""
    cells = served_cells(data)
    if not cells:
        return "Not measured."
    engines = list(dict.fromkeys([OURS, *(who for _, c in cells for who in c.values)]))
    head = ["model", "workload", "figure", *engines, "ratio to the best peer", "range", "pairs"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for workload, c in cells:
        columns = [c.model, workload, f"{c.name} ({c.unit})", *(_number(c.values.get(e)) for e in engines)]
        lines.append(f"| {' | '.join(columns + _ratio(c))} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _share(value: float | None, limit: str) -> str:
    return "-" if value is None else f"{value:.0%} {limit}"


def _ratio(cell: Cell) -> list[str]:
    """Ratio, range and pairs; a disturbed cell says so."""
    mark = f", disturbed ({cell.disturbed:.2f})" if cell.disturbed > QUIET else ""
    found = cell.ratio
    if found is None:
        return ["-", "-", f"0{mark}"]
    return [f"**{found.median:.2f}**", f"{found.low:.2f} to {found.high:.2f}", f"{found.pairs}{mark}"]


def render(data: dict) -> str:
    """All tables, for the terminal."""
    sections = (
        ("limits", limits_table),
        ("bare", bare_table),
        ("depth", depth_table),
        ("batch", batch_table),
        ("served", served_table),
    )
    return "\n\n".join([machine_line(data), *(f"## {name}\n\n{table(data)}" for name, table in sections)])


def machine_line(data: dict) -> str:
    """The machine, the build and the peers in a line."""
    m = data["machine"]
    peers = ", ".join(f"{k} {v}" for k, v in data["peers"].items()) or "none"
    days = sorted({r["at"][:10] for r in data["rows"]})
    when = days[0] if days[:1] == days[-1:] else " to ".join((days[0], days[-1])) if days else "-"
    return (
        f"{m.get('cpu', '?')} (family/model {m.get('family', '?')}; {', '.join(m.get('sets', []))}), "
        f"{m.get('cores', '?')} cores, {m.get('memory_gib', '?')} GiB; build {data['build']}; "
        f"measured {when}; peers: {peers}. llama.cpp's -ub: {data.get('micro_batches') or 'default'}."
    )


def replace_between(text: str, name: str, content: str) -> str:
    """Put content between `<!-- begin:NAME -->` and `<!-- end:NAME -->`.

    Raises:
        ValueError: the page has no such markers.
    """
    pattern = re.compile(rf"(<!-- begin:{name} -->\n).*?(<!-- end:{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no markers begin:{name} and end:{name}")
    return pattern.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text)


def write(data: dict, page: Path = PAGE) -> None:
    """Tables into the page, plots beside it."""
    from benchmarks.plot import draw  # noqa: PLC0415 - tables need no matplotlib

    text = page.read_text()
    for name, content in (
        ("machine", machine_line(data)),
        ("limits", limits_table(data)),
        ("bare", bare_table(data)),
        ("depth", depth_table(data)),
        ("batch", batch_table(data)),
        ("served", served_table(data)),
    ):
        text = replace_between(text, name, content)
    page.write_text(text)
    made = draw(bare_cells(data), served_cells(data), page.parent / "img")
    print(f"wrote {page} and {', '.join(p.name for p in made)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and docs/img/")
    args = parser.parse_args()
    data = json.loads(args.results.read_text())
    print(render(data))
    if args.write:
        write(data)


if __name__ == "__main__":
    main()
