"""From answers to medians, as data and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Run:
    """One answer: tokens per second from the first token on, and its text."""

    task: str
    way: str
    round: int
    tokens_s: float
    text: str


def medians(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Tokens per second by task and way."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        found.setdefault(run.task, {}).setdefault(run.way, []).append(run.tokens_s)
    return {task: {way: median(each) for way, each in ways.items()} for task, ways in found.items()}


def different(runs: Sequence[Run], ways: Sequence[str]) -> list[str]:
    """Answers of these ways that are not those of the first of them to the same prompt."""
    texts = {(run.task, run.round): run.text for run in runs if run.way == ways[0]}
    return [
        f"{run.way}: {run.task}, round {run.round}"
        for run in runs
        if run.way in ways and run.text != texts[run.task, run.round]
    ]


def markdown(found: Mapping[str, Mapping[str, float]], plain: str) -> str:
    """A row per way: the median over tasks of tokens per second, and of the ratio to `plain`."""
    ways = list(next(iter(found.values())))
    lines = ["| way | tokens/s | over plain | by task |", "|---|---|---|---|"]
    for way in ways:
        speeds = [each[way] for each in found.values()]
        ratios = [each[way] / each[plain] for each in found.values()]
        by_task = ", ".join(f"{task} {each[way] / each[plain]:.2f}" for task, each in found.items())
        lines.append(f"| {way} | {median(speeds):.1f} | {median(ratios):.2f} x | {by_task} |")
    return "\n".join(lines) + "\n"
