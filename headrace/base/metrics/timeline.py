"""Where the time of one request went: parts whose sum is its end-to-end time.

The scheduler books every second of a sequence at the moment it decides what becomes of it (`host/timeline`);
the client process adds what came before (its text became tokens) and after (its answer was sent).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class PartName(StrEnum):
    """The parts, in the order in which they are told."""

    TOKENIZE = "tokenize"
    """The prompt became token ids, before the engine knew of it."""
    QUEUE = "queue"
    """It waited; the reason says for what (`host/sched/sequence.WaitReason`)."""
    PREFIX_LOOKUP = "prefix_lookup"
    """Its computed prefix was looked for; the reason says what was found (`host/kv/prefix.PrefixOutcome`)."""
    PREFILL = "prefill"
    """Steps that computed its prompt, less what others' prompts took of them."""
    DECODE = "decode"
    """Steps that drew its tokens, less what others' prompts took of them."""
    VERIFY = "verify"
    """The same, of steps that checked drafts of it; making drafts is `draft`."""
    DRAFT = "draft"
    """Steps made drafts: for it, or (`others`) only for those beside it."""
    OTHERS_PREFILL = "others_prefill"
    """What others' prompts took of its steps; the reason names the request that took most."""
    PREEMPTED = "preempted"
    """It had lost its blocks: it waited (`waiting`), and its tokens were computed again (`recomputing`)."""
    HOST = "host"
    """Between and around steps: planning, bookkeeping, messages."""
    STREAM_OUT = "stream_out"
    """The engine was done, the answer not sent yet: its text was made, and the client read it."""


class Part(NamedTuple):
    """Seconds of one kind."""

    name: PartName
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixResult:
    """What the prefix cache had of a prompt when it was first scheduled."""

    outcome: str
    """A value of `host/kv/prefix.PrefixOutcome`, or `leader`: shared with the request's first choice."""
    prompt_tokens: int
    cached_tokens: int
    differs: "Differing | None" = None
    """Where the prompt differs from the one that its tenant cached last after the part found; None: nowhere
    that is known."""
    evicted_s: float | None = None
    """Seconds since the first block that was missing had been evicted; None: it was not."""

    @property
    def differs_at(self) -> int | None:
        """The first token that differs."""
        return None if self.differs is None else self.differs.at


class Differing(NamedTuple):
    """Two prompts around the first token in which they differ."""

    at: int
    before: tuple[int, ...]
    """The last ids that they share."""
    own: tuple[int, ...]
    """Ids of the prompt from there on; some, as of the other two."""
    cached: tuple[int, ...]
    """Those of the cached one."""
    texts: tuple[str, str, str] | None = None
    """The same as text; made where the tokenizer is."""


class OthersPrefill(NamedTuple):
    """What one other request's prompt took of a request's steps."""

    request_id: str
    tenant: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A request's time up to a moment, by parts."""

    request_id: str
    arrival_s: float
    until_s: float
    """The end, or the moment up to which it is told; seconds on the clock of `arrival_s`."""
    is_finished: bool
    parts: tuple[Part, ...]
    prefix: PrefixResult | None = None
    """None: it was not scheduled yet."""
    others: tuple[OthersPrefill, ...] = ()
    """Most seconds first; small ones may be left out."""
    output_tokens: int = 0
    num_preempted: int = 0
    drafts: tuple[int, int] = (0, 0)
    """How many were checked, and how many of them were right."""

    @property
    def e2e_s(self) -> float:
        """Seconds from arrival to the end, or so far."""
        return self.until_s - self.arrival_s

    def seconds_of(self, name: PartName, reason: str | None = None) -> float:
        """Seconds of the parts of a name (and a reason)."""
        return sum(p.seconds for p in self.parts if p.name is name and reason in {None, p.reason})
