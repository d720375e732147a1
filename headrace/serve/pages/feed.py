"""What the dashboard shows, put together at most once in `PERIOD_S`, however many watch.

Nothing is asked of the engine while nobody watches.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

from headrace import __version__
from headrace.base.clock import now_s, unix_s
from headrace.base.errors import HeadraceError, OverloadError
from headrace.base.messages import Picture
from headrace.engine.outputs import EngineStats
from headrace.serve.pages.doctor import Doctor
from headrace.serve.pages.figures import roofline, speculation
from headrace.serve.state import Served

PERIOD_S = 1.0
MAX_WATCHERS = 16
ANSWER_S = 2.0
"""An engine in a longer step is shown as it was."""


class Feed:
    """The news of one server for its dashboards.

    Args:
        state: the server.
        doctor: says what holds it up.
        with_ids: show ids of requests; off where several keys are in use, as a key may not see another's.
    """

    def __init__(self, state: Served, doctor: Doctor, *, with_ids: bool) -> None:
        self._state = state
        self._doctor = doctor
        self._with_ids = with_ids
        self._lock = asyncio.Lock()
        self._latest: dict[str, Any] = {}
        self._made_s = -PERIOD_S
        self.num_watchers = 0

    def enter(self) -> None:
        """One more watches.

        Raises:
            OverloadError: too many do.
        """
        if self.num_watchers >= MAX_WATCHERS:
            raise OverloadError(
                f"{self.num_watchers} dashboards are open, limit {MAX_WATCHERS}: close one", retry_after_s=5.0
            )
        self.num_watchers += 1

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """News once a period until closed, or the server stops; after `enter`."""
        try:
            while not self._state.draining:
                yield await self.latest()
                await asyncio.sleep(PERIOD_S)
        finally:
            self.num_watchers -= 1

    async def latest(self) -> dict[str, Any]:
        """News that are at most a period old."""
        async with self._lock:
            if now_s() - self._made_s >= PERIOD_S * 0.9:
                self._latest = await self._make()
                self._made_s = now_s()
            return self._latest

    async def _make(self) -> dict[str, Any]:
        state, stats, picture = self._state, None, None
        try:
            async with asyncio.timeout(ANSWER_S):
                stats, picture = await state.llm.stats(), await state.llm.picture()
        except (TimeoutError, HeadraceError):
            stats = picture = None
        health = state.llm.health()
        return {
            "time": unix_s(),
            "model": state.model_name,
            "version": __version__,
            "is_healthy": health.alive and health.making_progress,
            "is_draining": state.draining,
            "reason": health.reason,
            "restarts": state.llm.num_restarts,
            "recent": state.metrics.recent.tell(now_s(), with_ids=self._with_ids),
            **_engine(stats, picture, with_ids=self._with_ids),
            **self._judged(stats),
        }

    def _judged(self, stats: EngineStats | None) -> dict[str, Any]:
        """What the last seconds mean; nothing of an engine that did not answer."""
        if stats is None:
            return {"doctor": None, "roofline": None, "speculation": None}
        self._doctor.see(stats)
        trace = self._doctor.trace
        return {
            "doctor": self._doctor.verdict(),
            "roofline": None if trace is None else roofline(trace),
            "speculation": speculation(stats.counters),
        }


def _engine(stats: EngineStats | None, picture: Picture | None, *, with_ids: bool) -> dict[str, Any]:
    """What the engine told; nothing when it did not answer."""
    if stats is None or picture is None:
        return {"counters": None, "gauges": None, "picture": None}
    rows = [
        {
            "id": row.request_id if with_ids else "",
            "slot": row.slot,
            "prompt_tokens": row.prompt_tokens,
            "computed_tokens": row.computed_tokens,
            "cached_tokens": row.cached_tokens,
            "output_tokens": row.output_tokens,
            "max_tokens": row.max_tokens,
            "age_s": row.age_s,
        }
        for row in picture.rows
    ]
    return {
        "counters": dict(stats.counters),
        "gauges": dict(stats.gauges),
        "picture": {
            "step": picture.step,
            "num_slots": picture.num_slots,
            "rows": rows,
            "blocks": runs(picture.blocks),
        },
    }


def runs(states: bytes) -> list[tuple[int, int]]:
    """(state, how many in a row) of blocks."""
    return [(state, sum(1 for _ in same)) for state, same in groupby(states)]
