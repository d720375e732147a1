"""Plots: shares of the machine's limit, and ratios to the best peer with their range."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.cells import Cell

mpl.use("svg")
import matplotlib.pyplot as plt

COLORS = {"headrace": "#1f6f8b", "llama.cpp": "#d98e32"}
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
STYLE = {"svg.hashsalt": "headrace", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
"""A fixed salt: the same figures give the same file."""


def draw(bare: list[Cell], served: list[Cell], folder: Path, suffix: str = "") -> list[Path]:
    """Write what there is something to show of; the files made, whose names end in `suffix`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with plt.rc_context(STYLE):
        if any(c.shares for c in bare):
            made.append(_shares([c for c in bare if c.shares], folder / f"share_of_limit{suffix}.svg"))
        labelled = [(f"{c.model}  {c.name}", c.ratio) for c in bare if c.ratio]
        labelled += [(f"{c.model}  {c.of}: {c.name}", c.ratio) for c in served if c.ratio]
        if labelled:
            made.append(_ratios(labelled, folder / f"ratio_to_best_peer{suffix}.svg"))
    return made


def _shares(cells: list[Cell], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.3 * len(cells)))
    for i, cell in enumerate(cells):
        for offset, (who, color) in zip((-0.2, 0.2), COLORS.items(), strict=True):
            if who in cell.shares:
                label = who if i == 0 else None
                axes.barh(i + offset, 100 * cell.shares[who], 0.38, color=color, label=label)
    axes.set_yticks(range(len(cells)), [f"{c.model}  {c.name} ({c.limit})" for c in cells])
    axes.invert_yaxis()
    most = max(share for cell in cells for share in cell.shares.values())
    axes.set_xlim(0, 100 * max(1.0, most))  # above 1: memory gave more than to the probes before and after
    axes.set_xlabel("share of the machine's limit (%)")
    axes.legend(loc="lower right", frameon=False)
    return _save(figure, path)


def _ratios(labelled: list[tuple[str, Any]], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.25 * len(labelled)))
    for i, (_, r) in enumerate(labelled):
        color = COLORS["headrace"] if r.median >= 1 else COLORS["llama.cpp"]
        axes.plot([r.low, r.high], [i, i], color=color, linewidth=1.5)
        axes.plot([r.median], [i], "o", color=color, markersize=5)
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(labelled)), [label for label, _ in labelled])
    axes.invert_yaxis()
    axes.set_xscale("log")
    low, high = min(r.low for _, r in labelled), max(r.high for _, r in labelled)
    ticks = [t for t in TICKS if low / 2 < t < high * 2]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("ratio to the best peer: median and range of the pairs (more than 1: Headrace is better)")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return path
