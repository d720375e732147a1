"""What serving costs around the steps: CPU time of both processes, and wall time per step.

    python -m benchmarks.overhead_server MODEL.gguf [--streams 16] [--tokens 256] [--idle 10]

One server, `streams` clients that stream at once; steps and their seconds come from the engine's own
counters, CPU seconds from the kernel's accounts of the HTTP process and of the engine process. Then nobody
asks for anything, and an idle server must cost nothing. The clients run on the same cores: their CPU time is
shown too.
"""

import argparse
import asyncio
import os
import re
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import ask
from benchmarks.peers import servers

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def switches(pid: int) -> dict[str, int]:
    """Voluntary and forced context switches, summed over threads."""
    found = {"voluntary": 0, "nonvoluntary": 0}
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for kind, count in re.findall(r"^(\w+)_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE):
            found[kind] += int(count)
    return found


@dataclass
class Moment:
    """Everything that counts up, at one time."""

    wall_s: float
    cpu: dict[str, float]
    switches: dict[str, int]
    steps: float
    step_s: float

    @classmethod
    def of(cls, server: servers.Server, engine: int) -> "Moment":
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        values = dict(re.findall(r"^(headrace_engine_step\w*_total) (\S+)", text, re.MULTILINE))
        engine_switches = switches(engine)
        return cls(
            time.perf_counter(),
            {
                "HTTP process": cpu_s(server.process.pid),
                "engine process": cpu_s(engine),
                "clients": time.process_time(),
            },
            engine_switches,
            float(values["headrace_engine_steps_total"]),
            float(values["headrace_engine_step_seconds_total"]),
        )


def busy(server: servers.Server, engine: int, streams: int, tokens: int) -> list[str]:
    """Lines about `streams` streams of `tokens` tokens."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }

    async def middle() -> tuple[Moment, Moment]:
        work = [asyncio.ensure_future(ask("127.0.0.1", server.port, body)) for _ in range(streams)]
        await asyncio.sleep(0.3)
        before = await asyncio.to_thread(Moment.of, server, engine)
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        after = await asyncio.to_thread(Moment.of, server, engine)
        await asyncio.wait(work)
        failed = [w.result().error for w in work if w.result().error]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(work)} streams failed: {failed[0]}")
        return before, after

    before, after = asyncio.run(middle())
    wall, steps = after.wall_s - before.wall_s, after.steps - before.steps
    step_ms = 1e3 * (after.step_s - before.step_s) / steps
    lines = [
        f"{streams} streams: {steps / wall:.1f} steps/s; wall per step {1e3 * wall / steps:.2f} ms, of it "
        f"{step_ms:.2f} ms in the runner, {1e3 * wall / steps - step_ms:.2f} ms around it"
    ]
    for name, seconds in after.cpu.items():
        spent = seconds - before.cpu[name]
        lines.append(f"  {name}: {100 * spent / wall:.0f} % of a core, {1e3 * spent / steps:.2f} ms per step")
    each = {k: (v - before.switches[k]) / steps for k, v in after.switches.items()}
    lines.append(
        f"  engine context switches per step: {each['voluntary']:.1f} of its own, "
        f"{each['nonvoluntary']:.1f} forced"
    )
    return lines


def idle(server: servers.Server, engine: int, seconds: float) -> list[str]:
    """Lines about a server that nobody uses."""
    time.sleep(1.0)
    before = {"HTTP process": cpu_s(server.process.pid), "engine process": cpu_s(engine)}
    woken = {
        name: switches(pid)
        for name, pid in (("HTTP process", server.process.pid), ("engine process", engine))
    }
    time.sleep(seconds)
    lines = [f"idle for {seconds:.0f} s:"]
    for name, pid in (("HTTP process", server.process.pid), ("engine process", engine)):
        ticks = (cpu_s(pid) - before[name]) / TICK_S
        wakes = (sum(switches(pid).values()) - sum(woken[name].values())) / seconds
        lines.append(f"  {name}: {ticks / seconds:.2f} ticks per second, {wakes:.1f} wake-ups per second")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--headrace", default="headrace")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--idle", type=float, default=10.0)
    args = parser.parse_args()
    server = servers.headrace(args.model, args.headrace)
    try:
        engine = next(pid for pid in server.pids if pid != server.process.pid)
        for streams in map(int, args.streams.split(",")):
            print("\n".join(busy(server, engine, streams, args.tokens)), flush=True)
        print("\n".join(idle(server, engine, args.idle)))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
