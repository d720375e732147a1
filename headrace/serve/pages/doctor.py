"""What holds this server up now: the doctor's checks on the server's own metrics of the last seconds.

Nothing runs while nobody asks.
"""

import asyncio
from collections import deque
from functools import cached_property
from typing import Any

from headrace.base.clock import now_s
from headrace.base.errors import EngineDeadError
from headrace.engine.doctor.diagnosis import as_json, diagnose
from headrace.engine.doctor.finding import Patient
from headrace.engine.doctor.machine import Machine, machine_of
from headrace.engine.doctor.trace import Scrape, Trace, values_of
from headrace.engine.outputs import EngineStats
from headrace.serve.state import Served

WINDOW_S = 10.0
LEAST_S = 2.0
"""A shorter look shows single steps, not what holds the server up."""
EVERY_S = 0.5
MOST_APART_S = 3.0
"""What happened between two looks that are further apart is not known well enough: begin anew."""
ANSWER_S = 2.0


class Doctor:
    """Looks at one server from inside.

    Args:
        state: the server.
    """

    def __init__(self, state: Served) -> None:
        self._state = state
        self._scrapes: deque[Scrape] = deque()
        self._lock = asyncio.Lock()

    @cached_property
    def _machine(self) -> Machine:
        return machine_of()

    def see(self, stats: EngineStats, at_s: float | None = None) -> None:
        """Take the metrics of this moment, `stats` among them."""
        metrics, seen = self._state.metrics, self._scrapes
        now = now_s() if at_s is None else at_s
        if seen and now - seen[-1].seconds > MOST_APART_S:
            seen.clear()
        if seen and now - seen[-1].seconds < EVERY_S * 0.9:
            return
        metrics.note_health(self._state.llm.health(), self._state.llm.num_restarts)
        metrics.engine.latest = stats
        seen.append(Scrape(now, values_of(metrics.registry.collect())))
        while now - seen[0].seconds > WINDOW_S:
            seen.popleft()

    @property
    def trace(self) -> Trace | None:
        """The last seconds; None: not seen for `LEAST_S` yet."""
        seen = self._scrapes
        return Trace(seen) if seen and seen[-1].seconds - seen[0].seconds >= LEAST_S * 0.9 else None

    def verdict(self) -> dict[str, Any] | None:
        """Bottleneck, evidence, next, findings, as `headrace doctor --json` has them; None: see `trace`."""
        trace = self.trace
        return None if trace is None else as_json(diagnose(Patient(trace=trace, machine=self._machine)))

    async def examine(self) -> dict[str, Any]:
        """The verdict on seconds that end now; watches for `LEAST_S` if nobody did.

        Raises:
            EngineDeadError: the engine tells nothing.
        """
        async with self._lock:
            await self._ask()
            while (found := self.verdict()) is None:
                await asyncio.sleep(EVERY_S)
                await self._ask()
            return found

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                self.see(await self._state.llm.stats())
        except TimeoutError as error:
            raise EngineDeadError(
                f"the engine told nothing for {ANSWER_S:g} s: it is in a longer step, or stalled "
                "(GET /health says which); ask again later"
            ) from error
