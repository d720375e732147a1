"""Measures pairs on servers of this machine, which are started when they are first needed."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from headrace.base.clock import now_s
from headrace.base.errors import RequestError
from headrace.tools.ablate.launch import serving
from headrace.tools.bench.ask import Wish
from headrace.tools.bench.run import Plan, first_model, measure, requests_of, warm_up
from headrace.tools.bench.summary import Summary, summarize
from headrace.tools.bench.wire import Client, Target
from headrace.tools.tune.divergence import EXACT, Loss, Message, Place, answered, loss_of, places_of
from headrace.tools.tune.knobs import DEFAULT, Point, flags_of, lossy_of
from headrace.tools.tune.search import Pair

MOST_SERVERS = 2
"""That are up at a time: the pair's own. Idle ones take memory."""
CREDIT = 0.02
"""What a request counts that misses its objectives: two servers that miss all can still be told apart."""


def output_rate(summary: Summary) -> float:
    """Output tokens a second."""
    return summary.rates.output_tokens


def goodput(summary: Summary) -> float:
    """Requests a second within the objectives, with a little credit for the others."""
    good = summary.rates.good_requests or 0.0
    return good + CREDIT * (summary.rates.requests - good)


LOSS_SEED = 1 << 20
"""Added to the seed: texts that no pair is measured with, as they are in the prefix cache then."""

Objective = Callable[[Summary], float]


@dataclass(frozen=True, slots=True)
class _Server:
    client: Client
    wish: Wish
    stack: ExitStack


class LivePairs:
    """Servers by their settings. Use as a context manager: all end with it.

    Args:
        model: what is served.
        plan: the load of each half of a pair.
        flags: flags of all servers.
        start: the settings that all others are held against.
    """

    def __init__(self, model: str, plan: Plan, flags: Sequence[str] = (), start: Point = DEFAULT) -> None:
        self._start = start
        self._model = model
        self._plan = plan
        self._flags = tuple(flags)
        self._objective: Objective = output_rate if plan.slo is None else goodput
        self._servers: OrderedDict[tuple[str, ...], _Server] = OrderedDict()
        self._exact: tuple[list[list[Message]], list[Place]] | None = None
        self._losses: dict[tuple[str, ...], Loss] = {}

    def __enter__(self) -> "LivePairs":
        return self

    def __exit__(self, *_: object) -> None:
        while self._servers:
            self._servers.popitem()[1].stack.close()

    def start(self) -> None:
        """Start the server that all others are held against.

        Raises:
            EngineDeadError: it did not start: nothing can be measured.
        """
        self._server(self._start)

    def measure(self, first: Point, second: Point, number: int) -> Pair:
        """One pair; the order turns.

        Raises:
            EngineDeadError: a server did not start with these settings.
            RequestError: it completed nothing.
        """
        servers = [self._server(first), self._server(second)]
        began_s = now_s()  # starting servers is no measuring
        order = (0, 1) if number % 2 == 0 else (1, 0)
        seeded = self._plan.seeded(self._plan.dataset.seed + number)
        scores = {i: asyncio.run(self._score(servers[i], seeded)) for i in order}
        return Pair(scores[1] / scores[0], now_s() - began_s)

    def loss(self, point: Point) -> Loss:
        """What these settings do to the answers; measured once for each choice of those that do anything.

        Raises:
            EngineDeadError: a server did not start with these settings.
            RequestError: it did not answer.
        """
        lossy = lossy_of(point)
        if not lossy:
            return EXACT
        key = flags_of(lossy)
        if key not in self._losses:
            talks, exact = self._exactly({name: point[name] for name in point if name not in lossy})
            server = self._server(point)
            changed = asyncio.run(places_of(server.client, server.wish, talks))
            self._losses[key] = loss_of(exact, changed)
        return self._losses[key]

    def _exactly(self, point: Point) -> tuple[list[list[Message]], list[Place]]:
        """Texts, and what is likely in them; asked once, as no other setting changes an answer."""
        if self._exact is None:
            server = self._server(point)
            seeded = self._plan.seeded(self._plan.dataset.seed + LOSS_SEED)
            talks = asyncio.run(answered(server.client, server.wish, requests_of(seeded)[0]))
            self._exact = talks, asyncio.run(places_of(server.client, server.wish, talks))
        return self._exact

    async def _score(self, server: _Server, plan: Plan) -> float:
        summary = summarize(await measure(server.client, server.wish, plan), plan.slo)
        score = self._objective(summary)
        if score <= 0:
            kinds = ", ".join(f"{count} {kind}" for kind, count in summary.failures.items())
            raise RequestError(f"none of {summary.sent} requests was completed ({kinds})")
        return score

    def _server(self, point: Point) -> _Server:
        key = flags_of(point)
        if key in self._servers:
            self._servers.move_to_end(key)
            return self._servers[key]
        while len(self._servers) >= MOST_SERVERS:
            self._servers.popitem(last=False)[1].stack.close()
        stack = ExitStack()
        with ExitStack() as guard:
            guard.push(stack)
            url = stack.enter_context(serving(self._model, (*self._flags, *key)))
            self._servers[key] = _Server(*asyncio.run(_ready(url)), stack)
            guard.pop_all()
        return self._servers[key]


async def _ready(url: str) -> tuple[Client, Wish]:
    client = Client(Target.from_url(url))
    wish = Wish(await first_model(client), extra={"temperature": 0, "ignore_eos": True})
    await warm_up(client, wish, 2)
    return client, wish
