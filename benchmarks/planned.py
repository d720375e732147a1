"""What `headrace plan` says against what a server does: memory and throughput of several configurations.

    python -m benchmarks.planned MODEL 'users=1 prompt=128 answer=64 requests=12 kv=int16 pool=128' ...

Each configuration is planned first (rehearsed anew, so that a plan's own error counts), then served by a
fresh `headrace serve` on the same cores as its clients, whose users ask again when answered. Memory is
the proportional set size of both server processes at the end, when prompts have filled the pool. Prints a row
of a table for each, and under it where the time of a step went.
"""

import json
import os
import random
import sys
import threading
import urllib.request
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig, KVConfig, ModelConfig
from headrace.base.metrics import Slo
from headrace.tools.ablate.launch import serving
from headrace.tools.doctor.scrape import scrape
from headrace.tools.plan.planning import Planning
from headrace.tools.plan.traffic import Traffic

HEAD = (
    "| model | users, prompt, answer | KV, pool (MiB), context | MiB planned | measured | ratio "
    "| tok/s planned | measured | ratio | decode step ms planned | measured |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One configuration."""

    model: str
    users: int = 1
    prompt: int = 128
    answer: int = 64
    requests: int = 12
    kv: str = "auto"
    pool: int = 128
    """MiB."""
    context: int = 2048

    @classmethod
    def of(cls, model: str, text: str) -> "Case":
        """From `name=value` words."""
        pairs = dict(word.split("=", 1) for word in text.split())
        return cls(model, **{n: v if n == "kv" else int(v) for n, v in pairs.items()})  # type: ignore[arg-type]

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `headrace serve`."""
        pool = ("--kv-cache-memory-bytes", str(self.pool * MIB))
        return ("--kv-cache-dtype", self.kv, *pool, "--max-model-len", str(self.context))


def plan(case: Case) -> tuple[float, float, float, tuple[str, ...]]:
    """Planned resident MiB, tokens a second, seconds of a decoding step; and the plan's warnings."""
    config = EngineConfig(
        model=ModelConfig(model=case.model, max_model_len=case.context),
        kv=KVConfig(dtype=case.kv, pool_bytes=case.pool * MIB),
    )
    planning = Planning(config)
    report = planning.report(context=case.prompt + case.answer // 2)
    traffic = Traffic(
        num_requests=case.requests,
        users=case.users,
        prompt_tokens=(case.prompt, case.prompt),
        output_tokens=(case.answer, case.answer),
    )
    found = planning.simulate(traffic, 1, Slo())
    steps = [row for row in report["speed"]["decode"] if row["sequences"] <= case.users]
    return (
        report["memory"]["resident_bytes"] / MIB,
        found["output_tokens_per_s"],
        1e-3 * steps[-1]["tpot_ms"],
        planning.notes,
    )


def resident_mib() -> float:
    """Proportional set size of this process's children and theirs: the server."""
    total = 0
    for pid in _tree(os.getpid()):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def _tree(root: int) -> list[int]:
    found: list[int] = []
    todo = deque([root])
    while todo:
        pid = todo.popleft()
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(word) for word in (task / "children").read_text().split()]
                found += children
                todo += children
    return found


def ask(url: str, ids: list[int], answer: int) -> None:
    """One request, whole."""
    body = {"prompt": ids, "max_tokens": answer, "ignore_eos": True, "temperature": 0}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as got:
        got.read()


def serve(case: Case) -> tuple[float, float, dict[str, float]]:
    """Measured resident MiB and tokens a second, and the growth of the server's counters meanwhile."""
    rng = random.Random(5)

    def prompts(count: int, length: int) -> deque[list[int]]:
        return deque([rng.randrange(10, 30000) for _ in range(length)] for _ in range(count))

    with serving(case.model, case.flags) as url:
        for ids in prompts(3, 32):
            ask(url, ids, 8)
        threading.Event().wait(1.5)  # what the start does in the background
        before = scrape(url, None).values
        seconds = _users(url, prompts(case.requests, case.prompt), case)
        after = scrape(url, None).values
        length = case.context - 8
        filling = int(after["headrace_kv_blocks_total"]) * 16 // length + 1
        for ids in prompts(filling, length):
            ask(url, ids, 1)
        return (
            resident_mib(),
            case.requests * case.answer / seconds,
            {name: value - before.get(name, 0.0) for name, value in after.items()},
        )


def _users(url: str, jobs: deque[list[int]], case: Case) -> float:
    def user() -> None:
        with suppress(IndexError):
            while True:
                ask(url, jobs.popleft(), case.answer)

    began_s = now_s()
    users = [threading.Thread(target=user) for _ in range(case.users)]
    for one in users:
        one.start()
    for one in users:
        one.join()
    return now_s() - began_s


def row(case: Case) -> str:
    """A row of the table, and a line about steps."""
    want_mib, want_rate, want_step_s, notes = plan(case)
    got_mib, got_rate, grown = serve(case)
    steps = max(1.0, grown['headrace_phase_steps_total{phase="decode"}'])
    step_s = grown['headrace_phase_step_seconds_total{phase="decode"}'] / steps
    prefills = max(1.0, grown['headrace_phase_steps_total{phase="prefill"}'])
    prefill_s = grown['headrace_phase_step_seconds_total{phase="prefill"}'] / prefills
    around_s = grown["headrace_engine_loop_seconds_total"] - grown["headrace_engine_step_seconds_total"]
    around_s /= max(1.0, grown["headrace_engine_steps_total"])
    told = f"{Path(case.model).stem} | {case.users}, {case.prompt}, {case.answer} | "
    told += f"{case.kv}, {case.pool}, {case.context} | {want_mib:,.0f} | {got_mib:,.0f} | "
    told += f"{want_mib / got_mib:.2f} | {want_rate:.0f} | {got_rate:.0f} | {want_rate / got_rate:.2f} | "
    told += f"{1e3 * want_step_s:.2f} | {1e3 * step_s:.2f}"
    rest = f"prefill step {1e3 * prefill_s:.1f} ms x{prefills:.0f}; around a step {1e3 * around_s:.3f} ms"
    return f"| {told} |\n<!-- {rest}; {' '.join(notes)} -->"


if __name__ == "__main__":
    print(HEAD)
    for text in sys.argv[2:]:
        print(row(Case.of(sys.argv[1], text)), flush=True)
