"""All checks together: the bottleneck, the next one, and the rest."""

from collections.abc import Sequence
from typing import Any

from headrace.base.registry import Registry
from headrace.engine.doctor.finding import Check, Finding, Patient

CHECKS: Registry[Check] = Registry("doctor check", "headrace.engine.doctor.checks", "CHECK")
HEALTHY = "healthy"
_ORDER = ("bottleneck", "warning", "info")


def diagnose(patient: Patient) -> tuple[Finding, ...]:
    """What the checks find: bottlenecks by weight, then warnings, then the rest."""
    found = [finding for check in CHECKS.all().values() if (finding := check.look(patient)) is not None]
    return tuple(sorted(found, key=lambda f: (_ORDER.index(f.severity), -f.weight, f.name)))


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The shape that scripts read: bottleneck, evidence, next, findings."""
    held = [finding for finding in findings if finding.severity == "bottleneck"]
    return {
        "bottleneck": held[0].name if held else HEALTHY,
        "evidence": dict(held[0].evidence) if held else {},
        "next": held[1].name if len(held) > 1 else None,
        "findings": [
            {
                "name": finding.name,
                "severity": finding.severity,
                "evidence": dict(finding.evidence),
                "remedy": finding.remedy,
                "expected_gain": finding.expected_gain,
            }
            for finding in findings
        ],
    }


def as_text(findings: Sequence[Finding]) -> str:
    """The verdict, then each finding with proof, remedy and gain."""
    report = as_json(findings)
    lines = [f"bottleneck: {report['bottleneck']}"]
    if report["next"] is not None:
        lines.append(f"next:       {report['next']}")
    for finding in findings:
        proof = ", ".join(f"{name} {_shown(value)}" for name, value in finding.evidence.items())
        lines += [
            "",
            f"{finding.severity}: {finding.name} ({proof})",
            f"  remedy: {finding.remedy}",
            f"  gain:   {finding.expected_gain}",
        ]
    return "\n".join(lines)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def is_fine(findings: Sequence[Finding]) -> bool:
    """Whether nothing bounds the speed and nothing is wrong."""
    return not any(
        f.severity == "warning" or (f.severity == "bottleneck" and f.name != "idle") for f in findings
    )
