"""Effects as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace.tools.ablate.run import Effect

HEAD = "| technique | attacks | load | figure | without | with | gain | 95 % interval |"
BLANK = "|---|---|---|---|---|---|---|---|"


def markdown(effects: Sequence[Effect]) -> str:
    """A row for each; a gain of 1.00 is none."""
    return "\n".join([HEAD, BLANK, *(_row(effect) for effect in effects)]) + "\n"


def _row(effect: Effect) -> str:
    technique, chief = effect.technique, effect.chief
    found = chief.interval
    gain = f"**{found.ratio:.2f}**" if found.is_shown else f"{found.ratio:.2f}, no difference shown"
    numbers = f"{_short(chief.a)} | {_short(chief.b)} | {gain} | {found.low:.2f} to {found.high:.2f}"
    return f"| {technique.name} | {technique.attacks} | {technique.load} | {chief.title} | {numbers} |"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    """Every figure of every technique; ratios above 1: better with it."""
    return [
        {
            "technique": effect.technique.name,
            "attacks": effect.technique.attacks,
            "load": effect.technique.load,
            "without": list(effect.technique.off),
            "with": list(effect.technique.on),
            "figure": effect.technique.figure,
            "figures": [
                {"title": f.title, "without": f.a, "with": f.b, **asdict(f.interval)}
                for f in effect.comparison.figures
            ],
        }
        for effect in effects
    ]
