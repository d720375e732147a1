"""One measured load: talks chosen, a server warmed up, requests sent, figures made."""

from dataclasses import dataclass, field, replace

from headrace.base.errors import RequestError, UnreachableError
from headrace.base.metrics import Slo
from headrace.tools.bench.arrivals import Arrivals, recorded
from headrace.tools.bench.ask import Failure, Outcome, Wish
from headrace.tools.bench.datasets.choose import DatasetChoice, choose
from headrace.tools.bench.datasets.made import make
from headrace.tools.bench.datasets.talk import Shape, Talk
from headrace.tools.bench.drive import Load, OnDone, closed_loop, open_loop
from headrace.tools.bench.wire import Client, CutError, RefusedError

WARM_SEED = 1 << 30
MAX_USERS = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send and when: exactly one of `users`, `arrivals` and `speed`.

    Raises:
        RequestError: none or several of them, or numbers out of range.
    """

    dataset: DatasetChoice = field(default_factory=DatasetChoice)
    users: int | None = None
    """Closed loop."""
    arrivals: Arrivals | None = None
    """Open loop."""
    speed: float | None = None
    """The data set is a trace: replay its own times, this many times as fast."""
    slo: Slo | None = None
    warmup: int = 2
    """Requests before, which are not measured."""

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.users, self.arrivals, self.speed)) != 1:
            raise RequestError(
                "say one of --concurrency (closed loop), --rate (open loop) and --replay (a trace)"
            )
        if self.users is not None and not 1 <= self.users <= MAX_USERS:
            raise RequestError(
                f"--concurrency must be in [1, {MAX_USERS}], got {self.users}", param="concurrency"
            )
        if self.warmup < 0:
            raise RequestError(f"--warmup must not be negative, got {self.warmup}", param="warmup")

    def seeded(self, seed: int) -> "Plan":
        """The same load with other texts and, in an open loop, other times."""
        arrivals = self.arrivals and replace(self.arrivals, seed=seed)
        return replace(self, dataset=replace(self.dataset, seed=seed), arrivals=arrivals)


async def measure(client: Client, wish: Wish, plan: Plan, on_done: OnDone | None = None) -> Load:
    """Send the load.

    Raises:
        RequestError: the data set cannot be used.
    """
    talks, times = requests_of(plan)
    if plan.users is not None:
        return await closed_loop(client, wish, talks, plan.users, on_done)
    return await open_loop(client, wish, talks, times, on_done)


def requests_of(plan: Plan) -> tuple[list[Talk], list[float]]:
    """What a plan sends, and when in an open loop (seconds from the start).

    Raises:
        RequestError: the data set cannot be used.
    """
    talks = choose(plan.dataset)
    if plan.speed is not None:
        return talks, recorded(talks, plan.speed)
    return talks, plan.arrivals.times(len(talks)) if plan.arrivals is not None else []


async def warm_up(client: Client, wish: Wish, count: int, seed: int = 0) -> None:
    """Some short requests, one after the other: first-use costs of a server are not measured.

    Raises:
        UnreachableError: there is no server. RequestError: it refuses them; says what it answered.
    """
    talks = make("text", Shape(num_talks=count, input_tokens=64, output_tokens=8, seed=WARM_SEED + seed))
    load = await closed_loop(client, wish, talks, 1)
    failed = next((o for o in load.outcomes if o.failure is not None), None)
    if failed is not None and failed.failure is Failure.CONNECTION:
        raise UnreachableError(client.target.url, failed.detail)
    if failed is not None:
        raise RequestError(refused_text(client, failed))


def refused_text(client: Client, failed: Outcome) -> str:
    """Why a server that refuses the first request cannot be measured, and what may help."""
    hint = ""
    if "ignore_eos" in failed.detail:
        hint = "; --no-ignore-eos leaves that field out"
    return (
        f"{client.target.host}:{client.target.port} does not answer a short request "
        f"({failed.failure}: {failed.detail}){hint}"
    )


async def first_model(client: Client) -> str:
    """The first model that the server names.

    Raises:
        UnreachableError: there is no server. RequestError: it names none, or refuses to.
    """
    where = f"{client.target.host}:{client.target.port}"
    try:
        found = await client.get("/v1/models")
        return str(found["data"][0]["id"])
    except OSError as error:
        raise UnreachableError(client.target.url, error) from error
    except (CutError, RefusedError) as error:
        raise RequestError(f"{where} does not say what models it has ({error}); is the server up?") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RequestError(f"{where} names no model at /v1/models; say one with --model") from error


def described(plan: Plan) -> str:
    """A load in a few words."""
    count = f"{plan.dataset.num_talks} " if plan.dataset.num_talks else ""
    if plan.users is not None:
        how = f"closed loop, {plan.users} users"
    elif plan.speed is not None:
        how = f"trace at {plan.speed:g} times its speed"
    else:
        assert plan.arrivals is not None
        how = f"open loop, {plan.arrivals.rate:g} requests/s, {plan.arrivals.process}"
    return f"{count}{plan.dataset.name}, {how}"
