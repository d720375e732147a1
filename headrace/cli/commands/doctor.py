"""Say what holds a running server up now, with the numbers that prove it and what attacks it.

Reads /metrics for some seconds. Exit status 0: healthy or idle; 3: a bottleneck or a fault was found.
"""

from pathlib import Path
from typing import Annotated

import typer

NOT_FINE = 3
_LOCAL = ("://127.", "://localhost", "://[::1]")


def command(
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    seconds: Annotated[float, typer.Option(help="How long to watch.")] = 10.0,
    api_key: Annotated[str | None, typer.Option(help="Key, when the server asks for one.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write what was read, to look at it later.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Look at a recorded trace instead of a server.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the bottleneck of a running server."""
    from headrace.cli.loads import check_folders
    from headrace.engine.doctor.diagnosis import as_json, diagnose, is_fine
    from headrace.engine.doctor.finding import Patient
    from headrace.engine.doctor.machine import machine_of
    from headrace.tools.doctor.scrape import read_trace, watch, write_trace

    check_folders(record)
    seen = watch(url, api_key, seconds) if trace is None else read_trace(trace)
    if record is not None:
        write_trace(record, seen)
    is_here = trace is None and any(part in url for part in _LOCAL)
    findings = diagnose(Patient(trace=seen, machine=machine_of() if is_here else None))
    if json:
        from json import dumps

        print(dumps(as_json(findings)))
    else:
        from headrace.engine.doctor.diagnosis import as_text

        print(as_text(findings))
    if not is_fine(findings):
        raise typer.Exit(NOT_FINE)
