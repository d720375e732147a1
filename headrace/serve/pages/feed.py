"""What the dashboard shows, put together at most once in `PERIOD_S`, however many watch.

Nothing is asked of the engine while nobody watches.
"""

import asyncio
from collections import Counter
from itertools import groupby
from typing import Any

from headrace import __version__
from headrace.base.clock import now_s, unix_s
from headrace.base.errors import HeadraceError, OverloadError
from headrace.base.ids import outer_id
from headrace.base.messages import Picture
from headrace.engine.outputs import EngineStats
from headrace.serve.pages.doctor import Doctor
from headrace.serve.pages.figures import roofline, speculation
from headrace.serve.state import Served

PERIOD_S = 1.0
MAX_WATCHERS = 16
MAX_WATCHERS_OF_KEY = 4
"""Of one of several keys: one alone cannot shut the others out."""
ANSWER_S = 2.0
"""An engine in a longer step is shown as it was."""


class Feed:
    """The news of one server for its dashboards.

    Args:
        state: the server.
        doctor: says what holds it up.
        is_shared: several keys are in use. Ids of requests are not shown then, as a key may not see
            another's, and no key may take all places.
    """

    def __init__(self, state: Served, doctor: Doctor, *, is_shared: bool) -> None:
        self._state = state
        self._doctor = doctor
        self._with_ids = not is_shared
        self._most_of_key = MAX_WATCHERS_OF_KEY if is_shared else MAX_WATCHERS
        self._lock = asyncio.Lock()
        self._latest: dict[str, Any] = {}
        self._made_s = -PERIOD_S
        self._watchers: Counter[str] = Counter()
        """By the names of their keys."""

    def watch(self, key: str) -> "Watch":
        """News once a period, for whoever has the key of that name.

        Raises:
            OverloadError: too many watch.
        """
        for num, limit, whose in (
            (self._watchers[key], self._most_of_key, " with this key"),
            (self._watchers.total(), MAX_WATCHERS, ""),
        ):
            if num >= limit:
                raise OverloadError(
                    f"{num} dashboards are open{whose}, limit {limit}: close one", retry_after_s=5.0
                )
        self._watchers[key] += 1
        return Watch(self, key)

    def leave(self, key: str) -> None:
        """One less watches."""
        self._watchers[key] -= 1

    @property
    def is_over(self) -> bool:
        """The server stops."""
        return self._state.draining

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
            "recent": state.metrics.recent.tell(now_s(), state.llm.timelines, with_ids=self._with_ids),
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


class Watch:
    """The news of one watcher, whose place is free again once this is closed, read or not."""

    def __init__(self, feed: Feed, key: str) -> None:
        self._feed = feed
        self._key = key
        self._is_open = True
        self._is_first = True

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> dict[str, Any]:
        if not self._is_first:
            await asyncio.sleep(PERIOD_S)
        self._is_first = False
        if self._feed.is_over:
            await self.aclose()
        if not self._is_open:
            raise StopAsyncIteration
        return await self._feed.latest()

    async def aclose(self) -> None:
        """Leave; idempotent."""
        if self._is_open:
            self._is_open = False
            self._feed.leave(self._key)


def _engine(stats: EngineStats | None, picture: Picture | None, *, with_ids: bool) -> dict[str, Any]:
    """What the engine told; nothing when it did not answer."""
    if stats is None or picture is None:
        return {"counters": None, "gauges": None, "picture": None}
    rows = [
        {
            "id": outer_id(row.request_id) if with_ids else "",
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
