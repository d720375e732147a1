"""Servers, windows and verdicts: `headrace doctor` judges a server while a planted load is on."""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.doctor.causes import TINY, Cause
from benchmarks.doctor.traces import stem_of
from benchmarks.doctor.wires import Site, for_a_while
from benchmarks.overhead import tiny
from benchmarks.peers.servers import Server, headrace


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many windows of which length, and where traces are kept (None: nowhere)."""

    runs: int
    seconds: float
    program: str
    flags: tuple[str, ...] = ()
    traces: Path | None = None


@contextmanager
def serving(cause: Cause, plan: Plan) -> Iterator[Server]:
    """A server with the flags of a cause."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny(Path(folder)) if cause.model == TINY else cause.model
        server = headrace(model, plan.program, [*cause.flags, *plan.flags])
        try:
            yield server
        finally:
            server.stop()


def examine(cause: Cause, plan: Plan, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """All runs of a cause on one server."""
    with serving(cause, plan) as server:
        return [_one(cause, plan, server, number, note) for number in range(plan.runs)]


def _one(
    cause: Cause, plan: Plan, server: Server, number: int, note: Callable[[str], None]
) -> dict[str, Any]:
    site = Site(server.port, random.Random(1000 + number))
    load = cause.loads[number % len(cause.loads)]
    trace = plan.traces and plan.traces / f"{stem_of(cause.name)}-{number}.jsonl"
    with _burning(cause.burners):
        verdict = asyncio.run(
            for_a_while(site, load, lambda: _judge(plan, cause.settle_s, server.port, trace))
        )
    named = verdict["bottleneck"]
    row = {
        "cause": cause.name,
        "run": number,
        "named": named,
        "is_right": named in cause.right,
        "next": verdict["next"],
        "findings": [f["name"] for f in verdict["findings"] if f["severity"] != "bottleneck"],
        "evidence": {k: v if isinstance(v, str) else round(v, 4) for k, v in verdict["evidence"].items()},
        "answered": site.answered,
        "failed": site.failed[:3],
    }
    note(f"{cause.name} {number}: {named} (next {row['next']}) {row['evidence']} {site.answered} answered")
    for failure in row["failed"]:
        note(f"   failed: {failure}")
    return row


@contextmanager
def _burning(count: int) -> Iterator[None]:
    """Other work on the cores."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


async def _judge(plan: Plan, settle_s: float, port: int, trace: Path | None) -> dict[str, Any]:
    await asyncio.sleep(settle_s)
    command = [plan.program, "doctor", "--url", f"http://127.0.0.1:{port}", "--seconds", str(plan.seconds)]
    command += ["--json", *(["--record", str(trace)] if trace is not None else [])]
    done = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await done.communicate()
    if done.returncode not in {0, 3}:
        raise RuntimeError(f"headrace doctor ended with {done.returncode}: {err.decode()[-500:]}")
    return json.loads(out)


def table(rows: list[dict[str, Any]], causes: dict[str, Cause]) -> str:
    """Of each cause: how often it was named, and what was named instead."""
    lines = ["| planted | named | of | instead |", "|---|---:|---:|---|"]
    for name, cause in causes.items():
        mine = [row for row in rows if row["cause"] == name]
        if not mine:
            continue
        others = [row["named"] for row in mine if not row["is_right"]]
        instead = ", ".join(f"{other} {others.count(other)}" for other in sorted(set(others)))
        label = f"nothing ({' or '.join(cause.right)})" if cause.verdicts else name
        lines.append(f"| {label} | {len(mine) - len(others)} | {len(mine)} | {instead} |")
    return "\n".join(lines)


def program() -> str:
    return str(Path(sys.executable).with_name("headrace"))
