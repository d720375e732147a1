"""Health polls, memory samples, metrics, and the one who kills the engine."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.limits import tree
from benchmarks.soak.asks import CANARY, COMPLETION, Ask
from benchmarks.soak.wire import send

HEALTH_EVERY_S = 0.1
HEALTH_LIMIT_S = 5.0
GIVE_UP_S = 30.0
GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_blocks_held",
    "kv_blocks_total",
    "num_tokens_waiting",
)
PROBE = Ask(
    path=COMPLETION,
    body=json.dumps(CANARY | {"max_tokens": 2, "ignore_eos": True, "stream": True, "priority": -10}).encode(),
    kind="probe",
    stream=True,
)


@dataclass(slots=True)
class Poll:
    """One look at /health; status 0: no answer in time."""

    start: float
    end: float
    status: int


@dataclass(slots=True)
class Kill:
    """A kill and what followed, in seconds after it."""

    at: float
    red: float = GIVE_UP_S
    green: float = GIVE_UP_S
    token: float = GIVE_UP_S
    """To the first token of a request that was sent after the kill."""

    @property
    def over(self) -> float:
        """The moment from which nothing may fail."""
        return self.at + max(self.green, self.token)


@dataclass(slots=True)
class Life:
    """Resident MiB of one process over time."""

    name: str
    start: float
    samples: list[tuple[float, float]] = field(default_factory=list)


class Watcher:
    """Watches a server that is up.

    Args:
        host, port: its address.
        pid: the HTTP process.
    """

    def __init__(self, host: str, port: int, pid: int) -> None:
        self.host, self.port, self.pid = host, port, pid
        self.polls: list[Poll] = []
        self.kills: list[Kill] = []
        self.lives: dict[int, Life] = {pid: Life("http", time.monotonic())}

    def engine(self) -> int | None:
        """The engine process."""
        for pid in tree(self.pid)[1:]:
            try:
                if b"headrace.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        return None

    async def get(self, path: str, limit_s: float = HEALTH_LIMIT_S) -> tuple[int, str]:
        """GET; status 0: no answer in time."""
        try:
            async with asyncio.timeout(limit_s):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read(-1)
                writer.close()
        except (OSError, TimeoutError):
            return 0, ""
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split()[1]) if head else 0, body

    async def gauges(self) -> dict[str, float]:
        """The engine's gauges by their names without prefix."""
        lines = (await self.get("/metrics"))[1].splitlines()
        pairs = (line.removeprefix("headrace_").split(" ") for line in lines if line.startswith("headrace_"))
        return {p[0]: float(p[1]) for p in pairs if p[0] in GAUGES}

    async def poll_health(self) -> None:
        """Until cancelled."""
        while True:
            start = time.monotonic()
            status, _ = await self.get("/health")
            self.polls.append(Poll(start, time.monotonic(), status))
            await asyncio.sleep(HEALTH_EVERY_S)

    async def sample_memory(self) -> None:
        """Until cancelled; scrapes /metrics as a monitor would."""
        while True:
            engine, now = self.engine(), time.monotonic()
            for pid in (self.pid, engine):
                if pid is not None:
                    life = self.lives.setdefault(pid, Life("engine", now))
                    life.samples.append((now, resident_mib(pid)))
            await self.get("/metrics")
            await asyncio.sleep(1.0)

    async def kill_at(self, moments: Sequence[float]) -> None:
        """Kill the engine process at these moments and time what follows."""
        for moment in moments:
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            victim = self.engine()
            if victim is None:
                raise RuntimeError("there is no engine process to kill")
            os.kill(victim, signal.SIGKILL)
            kill = Kill(time.monotonic())
            self.kills.append(kill)
            await asyncio.gather(self._colours(kill), self._token(kill))

    async def _colours(self, kill: Kill) -> None:
        while time.monotonic() < kill.at + GIVE_UP_S:
            status, _ = await self.get("/health")
            after = time.monotonic() - kill.at
            if status == 503 and kill.red == GIVE_UP_S:
                kill.red = after
            if status == 200 and kill.red < GIVE_UP_S:
                kill.green = after
                return
            await asyncio.sleep(0.01)

    async def _token(self, kill: Kill) -> None:
        while time.monotonic() < kill.at + GIVE_UP_S:
            outcome = await send(self.host, self.port, PROBE)
            if outcome.first:
                kill.token = outcome.first - kill.at
                return
            await asyncio.sleep(0.02)


def resident_mib(pid: int) -> float:
    """Resident memory now; 0: the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def num_files(pid: int) -> int:
    """Open file descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))
