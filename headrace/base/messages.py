"""What crosses the border to the engine: commands go in, events come out. Plain data, no code."""

from dataclasses import dataclass
from enum import IntEnum

from headrace.base.ids import RequestId
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import FinishReason, Request
from headrace.base.step import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGroup:
    """Queue the choices of one API request, leader first: all or none."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End sequences: a stop string was found (STOP), or nobody wants them any more (ABORT)."""

    request_ids: tuple[RequestId, ...]
    reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStats:
    """Ask for counters; the answer carries the same number."""

    ask_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPicture:
    """Ask for a `Picture`; it carries the same number."""

    ask_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTimelines:
    """Ask where the time of requests went so far; the answer carries the same number."""

    ask_id: int
    request_ids: tuple[RequestId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """Abort everything and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Stop (or go on) making steps while staying alive: a switch for tests of the watchdog."""

    is_held: bool


Command = AddGroup | Finish | AskStats | AskPicture | AskTimelines | Shutdown | Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error as data: class name in `base.errors`, message, and what the class needs besides."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A group was not queued."""

    request_ids: tuple[RequestId, ...]
    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Deltas of one step (or of aborts between steps)."""

    step: int
    deltas: tuple[Delta, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters and gauges by name."""

    ask_id: int
    counters: dict[str, float]
    gauges: dict[str, float]


class BlockState(IntEnum):
    """What a block of the pool is."""

    FREE = 0
    CACHED = 1
    """Held by nobody; a prefix hit can still use it."""
    HELD = 2
    SHARED = 3
    """Held by several sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRow:
    """A running sequence."""

    request_id: str
    slot: int
    prompt_tokens: int
    computed_tokens: int
    """Positions whose KV is computed, cached ones included."""
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    age_s: float
    """Seconds since it arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One moment of the engine."""

    ask_id: int
    step: int
    num_slots: int
    rows: tuple[RunningRow, ...]
    """In slot order."""
    blocks: bytes
    """A `BlockState` for each block of the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """Of those requests that were asked for and are not over."""

    ask_id: int
    timelines: tuple[Timeline, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The engine has loaded the model. `phases` are seconds by name."""

    process_id: int
    phases: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine could not start, or has stopped."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life with the step counter; sent from outside the loop."""

    steps: int
    has_work: bool


Event = Refused | News | Stats | Picture | Timelines | Ready | Failed | Beat
