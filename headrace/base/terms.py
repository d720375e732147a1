"""On whose behalf a request runs: the tenant it counts for, its share, and until when it is wanted."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from headrace.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Whom requests count for, with the bounds of its share; None means no bound of its own.

    Raises:
        ConfigError: a bound is out of range; `param` names it.
    """

    name: str = ""
    weight: float = 1.0
    """Share of the engine among the tenants that wait: twice the weight, twice the tokens."""
    priority: int = 0
    """Lower goes first; a level is worth `schedule.priority_ageing_s` seconds of waiting."""
    max_running: int | None = None
    """Sequences that run together; more wait."""
    max_queued: int | None = None
    """Sequences that wait; more are refused."""
    kv_share: float = 1.0
    """Most of the KV pool that its running sequences hold together, in (0, 1]."""
    tokens_per_minute: int | None = None
    """Prompt and output tokens; a full minute's worth may come at once."""

    def __post_init__(self) -> None:
        """Refuse bounds under which nothing could run."""
        for name in ("max_running", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} of {self.name!r} must be at least 1, got {value}", param=name)
        if self.max_queued is not None and self.max_queued < 0:
            raise ConfigError(
                f"max_queued of {self.name!r} must not be negative, got {self.max_queued}", param="max_queued"
            )
        if not 0 < self.weight <= 1e6:
            raise ConfigError(
                f"weight of {self.name!r} must be in (0, 1e6], got {self.weight}", param="weight"
            )
        if not 0 < self.kv_share <= 1:
            raise ConfigError(
                f"kv_share of {self.name!r} must be in (0, 1], got {self.kv_share}", param="kv_share"
            )
        if not -1_000_000 <= self.priority <= 1_000_000:
            raise ConfigError(
                f"priority of {self.name!r} must be in [-1000000, 1000000], got {self.priority}",
                param="priority",
            )


ANYBODY = Tenant()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a request may take."""

    tenant: Tenant = field(default=ANYBODY)
    deadline_s: float | None = None
    """Monotonic seconds after which nobody wants the answer; None: never."""
    is_background: bool = False
    """Nobody waits for the answer: it runs in what others leave over, and gives way to any of them."""


_CALLER: ContextVar[Terms | None] = ContextVar("headrace_caller", default=None)
"""Set where a request is let in, so that no way to the engine can forget whom it counts for."""


def caller_terms() -> Terms:
    """The terms of whoever this task or thread works for."""
    return _CALLER.get() or Terms()


def set_caller(terms: Terms) -> None:
    """Name whom this task (and the tasks and threads it starts) works for."""
    _CALLER.set(terms)
