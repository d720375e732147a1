"""Tables and plots from the JSON file. Marked tables of docs/benchmarks*.md are written by this alone.

python -m benchmarks.report results/bench.json [--write [--page docs/benchmarks_avx2.md]]

What the file has measured takes the place of the page's rows; all others stay, with the build they are of. A
page is of one kind of machine.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from benchmarks.bare import OURS, STEPS, THEIRS, work_of
from benchmarks.cells import (
    COMPARED,
    Cell,
    compared,
    merged,
    number,
    read_compared,
    read_number,
    read_share,
    rows_of,
    shown_share,
    table,
)
from benchmarks.costs import ModelCost
from benchmarks.figures import Limits, Ratio, best, floor, limits_from, middle, ratio, share
from benchmarks.growth import fit, least_slope, step_ms
from benchmarks.served import FIGURES, Figure
from benchmarks.store import ROOT

PAGE = ROOT / "docs/benchmarks.md"
BARE = ("prefill", "decode", "batch")
RATIO = "ratio to the best peer"


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
        found = None
        if pairs:
            found = ratio(
                [by_engine[OURS][p]["tok/s"] for p in pairs], [by_engine[THEIRS][p]["tok/s"] for p in pairs]
            )
        shares, limit = _shares(data, model, part, name, values)
        cells.append(
            Cell(
                model=model,
                of=name,
                name=name,
                unit="tok/s",
                values=values,
                ratio=found,
                shares=shares,
                limit=limit,
                disturbed=max(r["other cores"] for r in mine),
                build=data["build"],
            )
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


def served_cells(data: dict) -> list[Cell]:
    """Cells of servers under load, by workload; the ratio is to the best peer of each pair."""
    cells = []
    rows = [r for r in data["rows"] if r["part"] == "served"]
    for model, workload in _ordered((r["model"], r["cell"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["cell"]) == (model, workload)]
        for figure in FIGURES[workload]:
            values, found = _against_best(mine, figure)
            cells.append(
                Cell(
                    model=model,
                    of=workload,
                    name=figure.name,
                    unit=figure.unit,
                    values=values,
                    ratio=found,
                    shares={},
                    limit="",
                    disturbed=max(r["other cores"] for r in mine),
                    build=data["build"],
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
            row = [f"{v / 1e9:.1f}" for v in (statistics.median(values), min(values), max(values))]
            lines.append(f"| {label} | {' | '.join(row)} | {len(values)} |")
    return "\n".join(lines)


def bare_table(cells: Iterable[Cell]) -> str:
    """Headrace in process against llama-bench."""
    head = ["model", "tokens"]
    for who in (OURS, THEIRS):
        head += [f"{who} tok/s", f"{who} of limit"]
    rows = []
    for c in cells:
        row = [c.model, c.name]
        for who in (OURS, THEIRS):
            row += [number(c.values.get(who)), shown_share(c.shares.get(who), c.limit)]
        rows.append(row + compared(c))
    return table([*head, "ratio", *COMPARED], rows)


def read_bare(text: str) -> list[Cell]:
    """The cells of `bare_table`."""
    cells = []
    for row in rows_of(text):
        values = {who: read_number(row[f"{who} tok/s"]) for who in (OURS, THEIRS)}
        shares = {who: read_share(row[f"{who} of limit"]) for who in (OURS, THEIRS)}
        found, disturbed = read_compared(row, "ratio")
        cells.append(
            Cell(
                model=row["model"],
                of=row["tokens"],
                name=row["tokens"],
                unit="tok/s",
                values={who: value for who, value in values.items() if value is not None},
                ratio=found,
                shares={who: value for who, (value, _) in shares.items() if value is not None},
                limit=shares[OURS][1] or shares[THEIRS][1],
                disturbed=disturbed,
                build=row["build"],
            )
        )
    return cells


def depth_table(data: dict, cells: Iterable[Cell], old: str = "") -> str:
    """Time of a token over the depth of its context, as a line, and its slope against reading the keys.

    Rows of `old` stay where the line was not measured.
    """
    head = ["model", "engine", "a (ms)", "b (us per 1,000 tokens)", "reading KV (us)", "b / reading"]
    rows = {(row["model"], row["engine"]): list(row.values()) for row in rows_of(old)}
    for (model, who), speeds in _by_number(cells, "decode").items():
        known, limits = dict(data["costs"].get(model, {})), limits_of(data, model, "decode")
        known.pop("step_tokens", None)
        if len(speeds) < 3 or not known or limits is None:
            continue
        depths = [d + STEPS / 2 for d in speeds]
        line = fit(depths, [1 / v for v in speeds.values()])
        least = least_slope(ModelCost(**known), limits, max(depths))
        figures = f"{line.base * 1e3:.2f}", f"{line.slope * 1e9:.0f}", f"{least * 1e9:.0f}"
        rows[model, who] = [model, who, *figures, f"{line.slope / least:.2f}"]
    return table(head, rows.values())


def batch_table(cells: Iterable[Cell]) -> str:
    """Time of a step over the number of its sequences, each with a prompt of its own."""
    found = {key: step_ms(speeds) for key, speeds in _by_number(cells, "own").items() if len(speeds) > 1}
    sizes = sorted({n for steps in found.values() for n in steps})
    rows = [
        [model, who, *(f"{steps[n]:.1f}" if n in steps else "-" for n in sizes)]
        for (model, who), steps in found.items()
    ]
    return table(["model", "engine", *(f"{n} (ms)" for n in sizes)], rows)


def _by_number(cells: Iterable[Cell], kind: str) -> dict[tuple[str, str], dict[int, float]]:
    """Median tokens a second of cells such as `decode 2048`, by (model, engine), then by number."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for cell in cells:
        name, size = cell.name.split()
        if name == kind:
            for who, value in cell.values.items():
                found.setdefault((cell.model, who), {})[int(size)] = value
    return found


def served_table(cells: list[Cell]) -> str:
    """Servers under load."""
    engines = list(dict.fromkeys([OURS, *(who for c in cells for who in c.values)]))
    rows = [
        [c.model, c.of, f"{c.name} ({c.unit})", *(number(c.values.get(e)) for e in engines), *compared(c)]
        for c in cells
    ]
    return table(["model", "workload", "figure", *engines, RATIO, *COMPARED], rows)


def read_served(text: str) -> list[Cell]:
    """The cells of `served_table`."""
    cells = []
    for row in rows_of(text):
        found, disturbed = read_compared(row, RATIO)
        name, _, unit = row["figure"].rpartition(" (")
        others = {"model", "workload", "figure", RATIO, *COMPARED}
        values = {who: read_number(text) for who, text in row.items() if who not in others}
        cells.append(
            Cell(
                model=row["model"],
                of=row["workload"],
                name=name,
                unit=unit.removesuffix(")"),
                values={who: value for who, value in values.items() if value is not None},
                ratio=found,
                shares={},
                limit="",
                disturbed=disturbed,
                build=row["build"],
            )
        )
    return cells


def render(data: dict) -> str:
    """All tables, for the terminal."""
    bare = bare_cells(data)
    sections = {
        "limits": limits_table(data),
        "bare": bare_table(bare),
        "depth": depth_table(data, bare),
        "batch": batch_table(bare),
        "served": served_table(served_cells(data)),
    }
    return "\n\n".join([machine_line(data), *(f"## {name}\n\n{text}" for name, text in sections.items())])


def kind_of(data: dict) -> str:
    """The kind of machine, as `machine_line` begins."""
    m = data["machine"]
    return f"{m.get('cpu', '?')} (family/model {m.get('family', '?')}; {', '.join(m.get('sets', []))})"


def machine_line(data: dict) -> str:
    """The machine, the build and the peers in a line."""
    m = data["machine"]
    peers = ", ".join(f"{k} {v}" for k, v in data["peers"].items()) or "none"
    days = sorted({r["at"][:10] for r in data["rows"]})
    when = days[0] if days[:1] == days[-1:] else " to ".join((days[0], days[-1])) if days else "-"
    return (
        f"{kind_of(data)}, {m.get('cores', '?')} cores, {m.get('memory_gib', '?')} GiB; "
        f"build {data['build']}; measured {when}; peers: {peers}. "
        f"llama.cpp's -ub: {data.get('micro_batches') or 'default'}."
    )


def between(text: str, name: str) -> str:
    """What stands between `<!-- begin:NAME -->` and `<!-- end:NAME -->`.

    Raises:
        ValueError: the page has no such markers.
    """
    found = _marked(name).search(text)
    if not found:
        raise ValueError(f"the page has no markers begin:{name} and end:{name}")
    return found[2]


def replace_between(text: str, name: str, content: str) -> str:
    """Put content between `<!-- begin:NAME -->` and `<!-- end:NAME -->`.

    Raises:
        ValueError: the page has no such markers.
    """
    between(text, name)
    return _marked(name).sub(lambda m: f"{m[1]}{content}\n{m[3]}", text)


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- begin:{name} -->\n)(.*?)(<!-- end:{name} -->)", re.DOTALL)


def check_page(data: dict, page: Path) -> None:
    """A page takes figures of its own kind of machine only.

    Raises:
        ValueError: it has figures of another kind.
    """
    there = between(page.read_text(), "machine").strip()
    if there and not there.startswith(kind_of(data)):
        raise ValueError(
            f"{page} has figures of {there.split(')')[0]}), not of {kind_of(data)}: --page names another page"
        )


def write(data: dict, page: Path = PAGE) -> None:
    """Tables into the page, plots beside it.

    Raises:
        ValueError: see `check_page`.
    """
    from benchmarks.plot import draw  # noqa: PLC0415 - tables need no matplotlib

    check_page(data, page)
    text = page.read_text()
    measured = bare_cells(data)
    bare = merged(read_bare(between(text, "bare")), measured)
    under_load = merged(read_served(between(text, "served")), served_cells(data))
    for name, content in (
        ("machine", machine_line(data)),
        ("limits", limits_table(data) if limits_of(data) else between(text, "limits").rstrip()),
        ("bare", bare_table(bare)),
        ("depth", depth_table(data, measured, between(text, "depth"))),
        ("batch", batch_table(bare)),
        ("served", served_table(under_load)),
    ):
        text = replace_between(text, name, content)
    page.write_text(text)
    made = draw(bare, under_load, page.parent / "img", page.stem.removeprefix(PAGE.stem))
    print(f"wrote {page} and {', '.join(p.name for p in made)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", action="store_true", help="into the page and img/ beside it")
    parser.add_argument("--page", type=Path, default=PAGE, help="where --write writes to")
    args = parser.parse_args()
    data = json.loads(args.results.read_text())
    print(render(data))
    if args.write:
        write(data, args.page)


if __name__ == "__main__":
    main()
