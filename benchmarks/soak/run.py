"""The load: clients that send one request after the other while the watcher watches."""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

from benchmarks.peers.servers import Server
from benchmarks.soak.asks import Asks, canary
from benchmarks.soak.watch import Watcher, num_files
from benchmarks.soak.wire import Outcome, send

MAX_BACKOFF_S = 2.0
IDLE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, how many clients, how many kills; `settle_s` is when memory should have stopped growing."""

    seconds: float
    streams: int
    kills: int
    seed: int = 0
    settle_s: float = 60.0

    def moments(self, start: float) -> list[float]:
        """When the engine is killed: over 15 to 45 % of the time; then it is let alone, for its memory."""
        return [start + self.seconds * (0.15 + 0.3 * n / max(1, self.kills - 1)) for n in range(self.kills)]


@dataclass(slots=True, kw_only=True)
class Found:
    """All that was seen."""

    plan: Plan
    watcher: Watcher
    start: float
    end: float = 0.0
    known: str = ""
    """The canary's answer when it was alone."""
    outcomes: list[Outcome] = field(default_factory=list)
    gauges: dict[str, float] = field(default_factory=dict)
    """After the load."""
    idle_s: float = 0.0
    """From the last answer until nothing ran or waited."""
    files: tuple[int, int] = (0, 0)
    """Open descriptors of the HTTP process before and after."""


async def soak(server: Server, plan: Plan) -> Found:
    """Run the load against a server that is up."""
    host, port, pid = "127.0.0.1", server.port, server.process.pid
    watcher = Watcher(host, port, pid)
    alone = await send(host, port, canary())
    await watcher.gauges()
    before = num_files(pid)
    found = Found(plan=plan, watcher=watcher, start=time.monotonic(), known=alone.text)
    background = [asyncio.create_task(watcher.poll_health()), asyncio.create_task(watcher.sample_memory())]
    killer = asyncio.create_task(watcher.kill_at(plan.moments(found.start)))
    asks, until = Asks(plan.seed), found.start + plan.seconds
    await asyncio.gather(*(_client(host, port, asks, until, found.outcomes) for _ in range(plan.streams)))
    await killer
    found.end = time.monotonic()
    await _until_idle(watcher, found)
    for task in background:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.5)
    found.files = before, num_files(pid)
    found.outcomes.append(await send(host, port, canary()))
    return found


async def _client(host: str, port: int, asks: Asks, until: float, outcomes: list[Outcome]) -> None:
    while time.monotonic() < until:
        outcome = await send(host, port, asks.next())
        outcomes.append(outcome)
        if outcome.retry_after:  # as a client should, but no longer than the soak has time for
            await asyncio.sleep(min(outcome.retry_after, MAX_BACKOFF_S) * random.uniform(0.5, 1.0))


async def _until_idle(watcher: Watcher, found: Found) -> None:
    while time.monotonic() < found.end + IDLE_S:
        found.gauges = await watcher.gauges()
        found.idle_s = time.monotonic() - found.end
        if found.gauges and not any(v for k, v in found.gauges.items() if k != "kv_blocks_total"):
            return
        await asyncio.sleep(0.05)
