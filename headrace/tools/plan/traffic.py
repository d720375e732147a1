"""Traffic by description: when requests come, and how long their prompts and answers are."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests to be simulated.

    Either `rate` (a second, Poisson) or `users` who each wait for an answer before they ask again.

    Raises:
        ConfigError: neither or both, or an impossible number.
    """

    num_requests: int = 200
    rate: float | None = None
    users: int | None = None
    prompt_tokens: tuple[int, int] = (256, 256)
    """Least and most, evenly spread."""
    output_tokens: tuple[int, int] = (128, 128)
    shared_tokens: int = 0
    """The first tokens of all prompts, alike."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what describes no traffic."""
        if (self.rate is None) == (self.users is None):
            raise ConfigError("traffic needs either --rate (requests a second) or --users; give one of them")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"--rate must be positive, got {self.rate:g}")
        if self.users is not None and self.users < 1:
            raise ConfigError(f"--users must be at least 1, got {self.users}")
        if not 1 <= self.num_requests <= 1_000_000:
            raise ConfigError(f"--requests must be in [1, 1000000], got {self.num_requests}")
        for name in ("prompt_tokens", "output_tokens"):
            least, most = getattr(self, name)
            if not 1 <= least <= most:
                raise ConfigError(
                    f"--{name.replace('_', '-')} must be at least 1 and rising, got {least}:{most}"
                )
        if not 0 <= self.shared_tokens < self.prompt_tokens[0]:
            raise ConfigError(
                f"--shared-tokens must be in [0, {self.prompt_tokens[0]}), the shortest prompt, got "
                f"{self.shared_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the traffic. `arrival_s` is None for a user's: it depends on the answer before."""

    number: int
    prompt: tuple[int, ...]
    output_tokens: int
    arrival_s: float | None


def asks(traffic: Traffic) -> Iterator[Ask]:
    """The requests in order; equal for equal seeds."""
    rng = random.Random(traffic.seed)
    moment = 0.0
    fresh = _fresh_ids()
    shared = tuple(fresh() for _ in range(traffic.shared_tokens))
    for number in range(traffic.num_requests):
        length = rng.randint(*traffic.prompt_tokens)
        own = tuple(fresh() for _ in range(length - len(shared)))
        arrival_s = None
        if traffic.rate is not None:
            moment += rng.expovariate(traffic.rate)
            arrival_s = moment
        yield Ask(number, shared + own, rng.randint(*traffic.output_tokens), arrival_s)


def _fresh_ids() -> Callable[[], int]:
    """Ids that never come again: prompts agree only where they are meant to."""
    last = 0

    def take() -> int:
        nonlocal last
        last += 1
        return last

    return take


def span(name: str, text: str) -> tuple[int, int]:
    """`N` or `LEAST:MOST` as numbers.

    Raises:
        ConfigError: neither.
    """
    least, _, most = text.partition(":")
    try:
        return int(least), int(most or least)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number or LEAST:MOST, got {text!r}") from error
