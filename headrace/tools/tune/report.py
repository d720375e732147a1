"""What a search found: a table, JSON, and a settings file with the evidence as comments."""

from dataclasses import asdict
from typing import Any

import yaml

from headrace.tools.tune.duel import Rules
from headrace.tools.tune.knobs import Point
from headrace.tools.tune.search import Found, Trial

HEAD = "| tried | against | answers | gain | interval | pairs | verdict |\n|---|---|---|---|---|---|---|\n"


def markdown(found: Found, rules: Rules) -> str:
    """A row for each comparison, then what it came to."""
    rows = "".join(f"| {' | '.join(_cells(trial, rules))} |\n" for trial in found.trials)
    return f"{HEAD}{rows}\n{conclusion(found)}\n"


def conclusion(found: Found) -> str:
    """One or two sentences."""
    time = f"{found.seconds:.0f} s of measuring"
    short = ""
    if found.is_out_of_time:
        short = f" The time was over before all was decided; it takes --budget {found.needed_s:.0f} or more."
    start = said(found.start)
    if found.best == found.start:
        stays = "The defaults stay" if not found.start else f"What was given stays ({start})"
        return f"{stays}: nothing was shown to be better ({time}).{short}"
    return f"Better than {start}: {said(found.best)} ({time}).{short}"


def said(point: Point) -> str:
    """A point in words."""
    return ", ".join(f"{name} = {_plain(value)}" for name, value in sorted(point.items())) or "the defaults"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cells(trial: Trial, rules: Rules) -> list[str]:
    shown = trial.gain(rules.confidence)
    numbers = [f"{shown.ratio:.3f}", f"{shown.low:.3f} to {shown.high:.3f}"] if shown else ["", ""]
    verdict = f"refused: {trial.error}" if trial.error else str(trial.verdict)
    changed = {trial.knob: trial.second[trial.knob]} if trial.knob else trial.second
    compared = [said(changed), said(trial.first), trial.loss.text()]
    return [*compared, *numbers, str(len(trial.ratios)), verdict.replace("|", "/")]


def as_json(found: Found, rules: Rules) -> dict[str, Any]:
    """All ratios, so that somebody else can judge."""
    trials: list[dict[str, Any]] = []
    for trial in found.trials:
        shown = trial.gain(rules.confidence)
        trials.append(
            {
                "setting": trial.knob,
                "first": dict(trial.first),
                "second": dict(trial.second),
                "ratios": trial.ratios,
                "gain": None
                if shown is None
                else {"ratio": shown.ratio, "low": shown.low, "high": shown.high},
                "verdict": str(trial.verdict),
                "error": trial.error,
                "loss": asdict(trial.loss),
            }
        )
    return {
        "start": dict(found.start),
        "best": dict(found.best),
        "seconds": found.seconds,
        "is_out_of_time": found.is_out_of_time,
        "confidence": rules.confidence,
        "trials": trials,
    }


def settings_file(found: Found, rules: Rules, load: str) -> str:
    """YAML for `headrace serve --config`; comments say what was measured."""
    lines = [f"# Measured: {load}.", f"# {conclusion(found)}"]
    lines += [f"# {' | '.join(_cells(trial, rules))}" for trial in found.trials]
    tree: dict[str, dict[str, Any]] = {}
    for name, value in sorted(found.best.items()):
        section, _, field = name.partition(".")
        tree.setdefault(section, {})[field] = value
    body = yaml.safe_dump(tree, sort_keys=True) if tree else ""
    return "\n".join(line.replace("\n", " ") for line in lines) + "\n" + body
