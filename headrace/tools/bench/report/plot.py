"""Charts as files: one self-contained HTML page, or one picture through matplotlib where that is installed.

The page holds inline SVG, no scripts and nothing from elsewhere; it follows the light or dark theme.
"""

import math
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.base.errors import RequestError
from headrace.tools.bench.report.charts import Chart, Series

COLORS = ("#1f6f8b", "#d98e32", "#b3402a", "#4c8c4a", "#7a5195", "#8a6d3b", "#2b8a8a", "#a05195", "#777777")
PICTURES = (".png", ".svg", ".pdf")
WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 34, 44
LEGEND_SERIES = 3
"""More than these are named at their own lines."""
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } svg text { fill: currentColor; font-size: 11px; }
.axis { stroke: currentColor; opacity: 0.5; } pre { overflow-x: auto; }
"""


def check(path: Path) -> None:
    """Whether a plot can be written under this name, before anything is measured.

    Raises:
        RequestError: an ending that is no picture and no page, or no matplotlib for a picture.
    """
    if path.suffix == ".html":
        return
    if path.suffix not in PICTURES:
        known = ", ".join((".html", *PICTURES))
        raise RequestError(f"--plot: {path.name!r} must end in one of {known}", param="plot")
    if find_spec("matplotlib") is None:
        raise RequestError(f"--plot {path.name} needs matplotlib; an .html file needs nothing", param="plot")


def write(path: Path, title: str, charts: Sequence[Chart], text: str) -> None:
    """Write charts; a page has the text below them.

    Raises:
        RequestError: as `check`, or the file cannot be written.
    """
    check(path)
    try:
        if path.suffix == ".html":
            path.write_text(page(title, charts, text))
        else:
            _picture(path, charts)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error}", param="plot") from error


def page(title: str, charts: Sequence[Chart], text: str) -> str:
    """A whole page."""
    figures = "\n".join(f"<figure>{svg(chart)}</figure>" for chart in charts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1><main>{figures}</main><pre>{escape(text)}</pre></body></html>\n"
    )


def svg(chart: Chart) -> str:
    """One chart; axes begin at 0, except where all values of an axis lie close together."""
    points = [point for series in chart.series for point in series.points]
    x0, x1 = _limits([x for x, _ in points])
    y0, y1 = _limits([y for _, y in points])

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    parts.append(_text(LEFT, 16, chart.title, "start"))
    below, beside = HEIGHT - BOTTOM + 15, LEFT - 6
    parts += [_text(at(x, y0)[0], below, f"{x:.6g}", "middle") for x in ticks(x0, x1)]
    parts += [_text(beside, at(x0, y)[1] + 4, f"{y:.6g}", "end") for y in ticks(y0, y1)]
    corner = f"{LEFT} {TOP} V {HEIGHT - BOTTOM} H {WIDTH - RIGHT}"
    parts.append(f'<path class="axis" fill="none" d="M {corner}"/>')
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, f"{chart.x_label}  ·  up: {chart.y_label}", "middle"))
    for number, series in enumerate(chart.series):
        color = COLORS[number % len(COLORS)]
        placed = [at(x, y) for x, y in series.points]
        parts.append(_path(series, placed, color))
        if len(chart.series) > LEGEND_SERIES:
            parts.append(_text(placed[0][0], placed[0][1] - 4, series.name, "start", color))
        elif len(chart.series) > 1:
            across = WIDTH - RIGHT - 90 * (len(chart.series) - 1 - number)
            parts.append(_text(across, 16, series.name, "end", color))
    return "".join(parts) + "</svg>"


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers, 1, 2 or 5 times a power of ten apart, within the limits."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((n * power for n in (1, 2, 5) if n * power >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low >= 0 and low < 0.4 * high:
        low = 0.0
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _path(series: Series, points: Sequence[tuple[float, float]], color: str) -> str:
    words = [f"{x:.1f} {y:.1f}" for x, y in points]
    if series.is_segments:
        drawn = " ".join(f"M {a} L {b}" for a, b in zip(words[::2], words[1::2], strict=True))
    else:
        drawn = "M " + " L ".join(words)
    name = escape(series.name)
    return f'<path fill="none" stroke="{color}" stroke-width="2" d="{drawn}"><title>{name}</title></path>'


def _text(x: float, y: float, text: str, anchor: str, color: str | None = None) -> str:
    style = f' style="fill:{color}"' if color else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _picture(path: Path, charts: Sequence[Chart]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - not part of the run-time install

    mpl.use("agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    rows = (len(charts) + 1) // 2
    grid: Any
    figure: Any
    figure, grid = plt.subplots(rows, 2, figsize=(11, 3.2 * rows), squeeze=False)
    cells: list[Any] = list(grid.flat)
    for cell, chart in zip(cells, charts, strict=False):
        for number, series in enumerate(chart.series):
            _draw(cell, series, COLORS[number % len(COLORS)])
        cell.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        if len(chart.series) > 1:
            cell.legend(frameon=False, fontsize=7)
    for cell in cells[len(charts) :]:
        cell.remove()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _draw(cell: Any, series: Series, color: str) -> None:
    if not series.is_segments:
        cell.plot(
            [x for x, _ in series.points], [y for _, y in series.points], color=color, label=series.name
        )
        return
    for number in range(0, len(series.points), 2):
        (x0, y0), (x1, y1) = series.points[number : number + 2]
        cell.plot([x0, x1], [y0, y1], color=color, label=series.name if number == 0 else None)
