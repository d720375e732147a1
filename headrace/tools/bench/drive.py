"""Who sends when: closed loops (users), open loops (times). The clock is the event loop's."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.tools.bench.ask import Outcome, Wish, ask
from headrace.tools.bench.datasets.talk import Talk
from headrace.tools.bench.wire import Client

LAG_PROBE_S = 1 / 64
OnDone = Callable[[Outcome], None]


@dataclass(slots=True)
class Load:
    """What came back."""

    outcomes: list[Outcome]
    start_s: float
    end_s: float
    """When the last answer was over."""
    loop_lags_s: list[float] = field(default_factory=list[float])
    """How late the event loop of this client was, probed 64 times a second."""
    is_cut: bool = False
    """It was interrupted; requests that were under way are not in it."""

    @property
    def seconds(self) -> float:
        """From the start to the end of the last answer."""
        return self.end_s - self.start_s


def cut(outcomes: Sequence[Outcome]) -> Load:
    """A load that was interrupted: the answers that were over by then, from the first that was due.

    Raises:
        ValueError: there are none.
    """
    ordered = sorted(outcomes, key=lambda outcome: (outcome.due_s, outcome.sent_s))
    return Load(ordered, ordered[0].due_s, max(o.end_s for o in ordered), is_cut=True)


async def closed_loop(
    client: Client, wish: Wish, talks: Sequence[Talk], users: int, on_done: OnDone | None = None
) -> Load:
    """`users` users, each of which begins its next talk when its last is over."""
    clock = asyncio.get_running_loop().time
    todo, outcomes = iter(talks), list[Outcome]()

    async def one() -> None:
        for talk in todo:
            await _talk(client, wish, talk, clock(), _keeper(outcomes, on_done))

    return await _timed(lambda _: [one() for _ in range(users)], outcomes)


async def open_loop(
    client: Client, wish: Wish, talks: Sequence[Talk], times: Sequence[float], on_done: OnDone | None = None
) -> Load:
    """Each talk begins at its time (seconds from the start), whatever else is under way."""
    clock = asyncio.get_running_loop().time
    outcomes: list[Outcome] = []

    async def one(talk: Talk, due_s: float) -> None:
        await asyncio.sleep(max(0.0, due_s - clock()))
        await _talk(client, wish, talk, due_s, _keeper(outcomes, on_done))

    def tasks(start_s: float) -> list[Coroutine[Any, Any, None]]:
        return [one(talk, start_s + at) for talk, at in zip(talks, times, strict=True)]

    return await _timed(tasks, outcomes)


def _keeper(outcomes: list[Outcome], on_done: OnDone | None) -> OnDone:
    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if on_done is not None:
            on_done(outcome)

    return keep


async def _timed(
    tasks: Callable[[float], Sequence[Coroutine[Any, Any, None]]], outcomes: list[Outcome]
) -> Load:
    clock, lags = asyncio.get_running_loop().time, list[float]()
    probe = asyncio.create_task(_probe(lags))
    start_s = clock()
    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks(start_s):
                group.create_task(task)
    finally:
        probe.cancel()
        with suppress(asyncio.CancelledError):
            await probe
    outcomes.sort(key=lambda outcome: (outcome.due_s, outcome.sent_s))
    return Load(outcomes, start_s, max((o.end_s for o in outcomes), default=start_s), lags)


async def _probe(lags: list[float]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        before = clock()
        await asyncio.sleep(LAG_PROBE_S)
        lags.append(max(0.0, clock() - before - LAG_PROBE_S))


async def _talk(client: Client, wish: Wish, talk: Talk, due_s: float, on_done: OnDone) -> None:
    """The turns of a talk; a failed one ends it. A later turn is due when the answer before it is over."""
    history: list[Mapping[str, str]] = []
    for number, turn in enumerate(talk.turns, 1):
        history += turn.messages
        body = wish.body(history, turn.max_tokens)
        outcome = await ask(client, wish.path, body, wish.timeout_s, due_s)
        outcome.tag = f"turn {number}" if len(talk.turns) > 1 else ""
        on_done(outcome)
        if outcome.failure is not None:
            return
        history.append({"role": "assistant", "content": outcome.text})
        due_s = outcome.end_s
