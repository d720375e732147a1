"""Service level objectives as text: `ttft=500ms,tpot=50ms,itl=200ms,e2el=10s`."""

from headrace.base.errors import RequestError
from headrace.base.metrics import Slo

NAMES = ("ttft", "tpot", "itl", "e2el")
UNITS = {"ms": 1e-3, "s": 1.0}


def parse_slo(text: str) -> Slo | None:
    """From text; None: it has no bounds.

    Raises:
        RequestError: an unknown name, a bound twice, or a number without its unit.
    """
    limits: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = (p.strip() for p in part.partition("="))
        if name not in NAMES or f"{name}_s" in limits:
            what = "unknown" if name not in NAMES else "named twice"
            raise RequestError(f"--slo: {name!r} is {what}; names are {', '.join(NAMES)}", param="slo")
        limits[f"{name}_s"] = _seconds(name, value)
    return Slo(**limits) if limits else None


def _seconds(name: str, text: str) -> float:
    for unit, factor in UNITS.items():
        try:
            value = float(text.removesuffix(unit)) if text.endswith(unit) else 0.0
        except ValueError:
            continue  # `500ms` ends in s too
        if 0 < value < float("inf"):
            return value * factor
    raise RequestError(
        f"--slo: {name} needs a time above 0 with its unit, as 500ms or 2s; got {text!r}", param="slo"
    )
