"""What trees of drafts would gain over chains, from the ranks that heads give to the right tokens.

    chain      a row per place: the likeliest token, then the likeliest after it ..
    tree       a row per node: a path of ranks (1), (2), (1, 1), (1, 2) ..; the right tokens take one path

The ranks of the right tokens, each given the right ones before it, say for any tree how far a check goes. The
best tree of n nodes has the n paths that occur most; they are chosen on one half of the places, and judged on
the other. A step of n rows whose drafts take d passes of the heads takes step + n row + d pass milliseconds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranks = tuple[int, ...]
"""Ranks from the first place on."""
MOST_RANK = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """A set of drafts that one step checks."""

    rows: int
    passes: int
    tokens: float
    """Tokens of a step, on average: those accepted and the one after them."""

    def speed(self, step_ms: float, row_ms: float, pass_ms: float) -> float:
        """Tokens per second, over plain steps."""
        return self.tokens * step_ms / (step_ms + self.rows * row_ms + self.passes * pass_ms)


def chain(ranks: NDArray[np.int64], rows: int) -> Shape:
    """The chain of so many drafts, at most as many as there are places in `ranks` [depth, N]."""
    return tree(ranks, [(0,) * depth for depth in range(1, min(rows, len(ranks)) + 1)])


def best_paths(ranks: NDArray[np.int64], nodes: int) -> list[Ranks]:
    """The paths of the tree with so many nodes that are accepted most; each with all that lead to it."""
    counts: Counter[Ranks] = Counter()
    for way in ranks.T.tolist():
        path: Ranks = ()
        for rank in way:
            if rank >= MOST_RANK:
                break
            path = (*path, rank)
            counts[path] += 1
    # A path occurs at most as often as one that leads to it, which goes first where they are equal.
    return sorted(counts, key=lambda path: (-counts[path], len(path), path))[:nodes]


def tree(ranks: NDArray[np.int64], paths: Sequence[Ranks]) -> Shape:
    """What the tree of these paths gives on these places, which may be others than it was chosen on."""
    known = set(paths)
    accepted = 0
    for way in ranks.T.tolist():
        depth = 0
        while depth < len(way) and tuple(way[: depth + 1]) in known:
            depth += 1
        accepted += depth
    return Shape(len(paths), max(map(len, paths), default=0), 1 + accepted / max(ranks.shape[1], 1))


def markdown(ranks: NDArray[np.int64], sizes: Sequence[int], prices: tuple[float, float, float]) -> str:
    """A row per number of drafts."""
    choosing, judging = ranks[:, ::2], ranks[:, 1::2]
    lines = ["| drafts | chain: tokens | speed | tree: tokens | speed | paths |", "|---|---|---|---|---|---|"]
    for size in sizes:
        paths = best_paths(choosing, size)
        one, other = chain(judging, size), tree(judging, paths)
        shown = " ".join(".".join(str(rank + 1) for rank in path) for path in paths)
        speeds = f"{one.speed(*prices):.2f}", f"{other.speed(*prices):.2f}"
        lines.append(
            f"| {size} | {one.tokens:.2f} | {speeds[0]} x | {other.tokens:.2f} | {speeds[1]} x | {shown} |"
        )
    return "\n".join(lines) + "\n"
