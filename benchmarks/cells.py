"""Rows of the page's tables: made of measurements, or read back from the page where none are new."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.figures import Ratio

QUIET = 0.1
"""A figure is marked when others took so many cores."""
_DISTURBED = re.compile(r", disturbed \(([\d.]+)\)")


@dataclass(frozen=True)
class Cell:
    """One measurement over all pairs: values by engine, ratio to the best peer, share of the limit.

    `of` is what was run and `name` the figure of it (equal where there is one figure); `build`: of Headrace.
    """

    model: str
    of: str
    name: str
    unit: str
    values: dict[str, float]
    ratio: Ratio | None
    shares: dict[str, float]
    limit: str
    disturbed: float
    build: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What is measured, whenever it is."""
        return self.model, self.of, self.name


def merged(page: Iterable[Cell], measured: Iterable[Cell]) -> list[Cell]:
    """The page's cells, those measured anew in place of the old; others that are new behind their model's."""
    found = {cell.key: cell for cell in page}
    found.update((cell.key, cell) for cell in measured)
    models = list(dict.fromkeys(model for model, _, _ in found))
    return sorted(found.values(), key=lambda cell: models.index(cell.model))


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table, or a sentence where nothing is measured."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    begin = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(begin + lines) if lines else "Not measured."


def rows_of(text: str) -> Iterator[dict[str, str]]:
    """The rows of a Markdown table, by the names of its columns."""
    lines = [[x.strip() for x in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    for line in lines[2:]:
        yield dict(zip(lines[0], line, strict=True))


def number(value: float | None) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    return f"{value:.1f}" if round(value, 1) < 100 else f"{value:,.0f}"


def shown_share(value: float | None, limit: str) -> str:
    """A share of a limit as a table shows it."""
    return "-" if value is None else f"{value:.0%} {limit}"


def compared(cell: Cell) -> list[str]:
    """Ratio, range, pairs and build; a disturbed cell says so."""
    mark = f", disturbed ({cell.disturbed:.2f})" if round(cell.disturbed, 2) >= QUIET else ""
    found = cell.ratio
    if found is None:
        return ["-", "-", f"0{mark}", cell.build]
    range_ = f"{found.low:.2f} to {found.high:.2f}"
    return [f"**{found.median:.2f}**", range_, f"{found.pairs}{mark}", cell.build]


COMPARED = ["range", "pairs", "build"]
"""Columns of `compared` after the ratio."""


def read_number(text: str) -> float | None:
    """What `number` wrote."""
    return None if text == "-" else float(text.replace(",", ""))


def read_share(text: str) -> tuple[float | None, str]:
    """What `shown_share` wrote."""
    if text == "-":
        return None, ""
    percent, _, limit = text.partition("% ")
    return float(percent) / 100, limit


def read_compared(row: dict[str, str], ratio: str) -> tuple[Ratio | None, float]:
    """Ratio and disturbing cores that `compared` wrote; `ratio`: the name of its column."""
    mark = _DISTURBED.search(row["pairs"])
    disturbed = float(mark[1]) if mark else 0.0
    if row[ratio] == "-":
        return None, disturbed
    low, _, high = row["range"].partition(" to ")
    pairs = int(row["pairs"].partition(",")[0])
    return Ratio(float(row[ratio].strip("*")), float(low), float(high), pairs), disturbed
