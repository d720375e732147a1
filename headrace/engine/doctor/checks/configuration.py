"""Settings that came out lower than was asked for, or than the model and the machine allow."""

import re

from headrace.engine.doctor.finding import Check, Finding, Patient

_SETTING = re.compile(
    r'headrace_setting\{asked="(.*?)",name="(.*?)",reason="(.*)",value="(.*?)"\}', re.DOTALL
)


def _look(patient: Patient) -> Finding | None:
    if patient.trace is None:
        return None
    values = patient.trace.scrapes[-1].values
    found = [_SETTING.fullmatch(name) for name, value in values.items() if value > 0.0]
    evidence: dict[str, float | str] = {
        match[2]: f"asked {match[1]}, got {match[4]}: {match[3]}" for match in found if match is not None
    }
    if not evidence:
        return None
    return Finding(
        name="configuration",
        severity="info",
        evidence=evidence,
        remedy="headrace serve --check shows all settings, each with its reason; lift what the reason names",
        expected_gain="headrace bench compare of two servers, with the setting and without, measures it",
    )


CHECK = Check(_look)
