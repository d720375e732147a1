"""One sequence: what was asked, what is known, where it runs, and how it spent its time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId, SlotId
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import FinishReason, Request
from headrace.base.step import Delta, SequenceTiming, TokenLogprobs
from headrace.base.tasks import BeamSearch, Pooling
from headrace.host.kv.keys import KeyChain
from headrace.host.sched.drafts.track import Track
from headrace.host.sched.fair.account import Account
from headrace.host.sched.fair.rank import Rank
from headrace.host.timeline.times import Times

Trouble = tuple[str | None, str]
"""Why a sequence failed, and the class of the error in `base/errors`."""
NO_TROUBLE: Trouble = (None, "")


class SequenceState(Enum):
    """WAITING -> RUNNING -> FINISHED; RUNNING -> WAITING when preempted; any -> FINISHED."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class WaitReason(Enum):
    """Why a sequence is not running."""

    STEP = "step"
    """It arrived while a step ran, or was on its way to the engine."""
    SLOTS = "slots"
    BLOCKS = "blocks"
    TOKENS = "token_budget"
    LEADER = "leader"
    """Its leader's prompt, which it will share, is not computed yet."""
    WINDOW = "policy_window"
    PREEMPTED = "preempted"
    TENANT = "tenant_limit"
    """Its tenant has as many running, or as much of the KV pool, as it may."""
    GRAMMAR = "grammar"
    """Its grammar is being compiled."""
    ALLOWANCE = "tokens_per_minute"
    """Background of a tenant that has spent the part of its tokens a minute that is not kept for others."""
    PRIORITY = "priority"
    """One that came later and ranks before it got the place that it would have had."""
    BEAMS = "beams"
    """A beam has its result, and others of its search do not."""


@dataclass(slots=True)
class Life:
    """Moments (monotonic seconds; 0.0: not yet) and counts of a sequence's life."""

    arrival_s: float
    first_scheduled_s: float = 0.0
    first_token_s: float = 0.0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    num_preempted: int = 0
    num_bypassed: int = 0
    """How many overtook it while it was the first in the queue."""
    waits: dict[WaitReason, float] = field(default_factory=dict[WaitReason, float])
    """Seconds waited, by reason."""


class Sequence:
    """A request on its way. Changed by the scheduler only.

        tokens        [ prompt .......... | output ...... ]
        num_valid     [ KV committed ......... ]
        num_computed  [ KV planned or committed .. ]

    Args:
        request: what was asked.
        chain: its block keys.
        rank: lower runs first and is preempted last.
        arrival_s: monotonic seconds.
        account: whom it counts for.

    Raises:
        InvariantError: `max_tokens` is not resolved.
    """

    __slots__ = (
        "account",
        "chain",
        "draws",
        "end_ids",
        "has_kv_bound",
        "is_background",
        "is_beam",
        "is_late",
        "leader",
        "lease",
        "life",
        "max_drafts",
        "max_positions",
        "max_tokens",
        "min_tokens",
        "num_computed",
        "num_drafts",
        "num_held",
        "num_late",
        "num_prompt",
        "num_prompt_logprobs",
        "num_valid",
        "offer",
        "pending",
        "rank",
        "rejoins",
        "request",
        "request_id",
        "slot",
        "state",
        "times",
        "tokens",
        "track",
    )

    def __init__(
        self, request: Request, chain: KeyChain, rank: Rank, arrival_s: float, account: Account
    ) -> None:
        if request.sampling.max_tokens is None:
            raise InvariantError(f"request {request.request_id!r} has no max_tokens")
        self.request = request
        self.request_id: RequestId = request.request_id
        self.chain = chain
        self.rank = rank
        self.account = account
        # Fixed for this stay, whatever bounds later requests of the tenant bring.
        self.has_kv_bound = request.terms.tenant.kv_share < 1
        self.is_background = request.terms.is_background
        self.life = Life(arrival_s)
        self.times = Times(arrival_s)
        self.tokens = list(request.prompt_ids)
        self.num_prompt = len(self.tokens)
        self.max_tokens: int = request.sampling.max_tokens
        self.min_tokens = request.sampling.min_tokens
        self.end_ids = request.end_ids
        # Positions that ever need KV: the last drawn token is never computed.
        self.max_positions = self.num_prompt + self.max_tokens - 1
        self.draws = not isinstance(request.task, Pooling)
        # A beam: its next tokens are chosen together with those of its search, once all have offered theirs.
        self.is_beam = isinstance(request.task, BeamSearch)
        self.offer: TokenLogprobs | None = None
        # The runner must be told of its tokens and blocks anew.
        self.rejoins = False
        if not self.draws:
            self.max_positions = self.num_prompt
        # The sequence whose prompt blocks this one shares when it joins. The object, not its id: once it is
        # over, another request may bear the id.
        self.leader: Sequence | None = None
        self.state = SequenceState.WAITING
        self.slot: SlotId | None = None
        # Number of this stay in a slot: results with another lease are late and do not count.
        self.lease = -1
        self.num_computed = 0
        self.num_valid = 0
        # Tokens that planned rows will draw.
        self.pending = 0
        # Drafts that the runner holds for the next row, those that it can compute for it, and those that the
        # row shall check; whether these are of the second kind.
        self.num_held = self.num_late = self.num_drafts = 0
        self.is_late = False
        # Drafts to ask for with the next row, and what is known of those before (None: never any).
        self.max_drafts = 0
        self.track: Track | None = None
        # Prompt positions 1 .. this number have had their log-probability delivered.
        self.num_prompt_logprobs = 0

    @property
    def num_output(self) -> int:
        """Accepted output tokens."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Known (or pending) tokens whose KV no row has been planned for."""
        known = len(self.tokens) + self.pending
        return (min(self.max_positions, known)) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether its next row continues the output by one token."""
        return len(self.tokens) + self.pending > self.num_prompt and self.num_missing <= 1

    def ends_at(self, token: int, num_before: int) -> FinishReason | None:
        """How the answer ends with this token, behind `num_before` tokens of output; None: it goes on."""
        if num_before >= self.min_tokens and token in self.end_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_before + 1 >= self.max_tokens else None

    @property
    def max_cached(self) -> int | None:
        """Most tokens a prefix hit may skip.

        Log-probabilities of the prompt must be computed once; a mean needs the hidden state of every token.
        """
        if self.request.task is Pooling.MEAN:
            return 0
        if self.request.sampling.prompt_logprobs is None or self.num_prompt_logprobs >= self.num_prompt - 1:
            return None
        return self.num_prompt_logprobs

    def timeline(self, now_s: float, waits: Mapping[WaitReason, float]) -> Timeline:
        """Where its time went up to now.

        Args:
            now_s: the moment.
            waits: seconds in the queue by reason, those of the present stay included.
        """
        before = {r.value: s for r, s in waits.items() if r is not WaitReason.PREEMPTED and s > 0.0}
        slot_s = now_s if self.state is SequenceState.RUNNING else None
        return Timeline(
            request_id=self.request_id,
            arrival_s=self.life.arrival_s,
            until_s=now_s,
            is_finished=self.state is SequenceState.FINISHED,
            parts=self.times.told(before, waits.get(WaitReason.PREEMPTED, 0.0), slot_s),
            prefix=self.times.prefix,
            others=self.times.largest_others(),
            output_tokens=self.num_output,
            num_preempted=self.life.num_preempted,
            drafts=(self.track.num_checked, self.track.num_accepted) if self.track else (0, 0),
        )

    def closing_delta(
        self, finish: FinishReason, now_s: float, *, trouble: Trouble = NO_TROUBLE, news: Delta | None = None
    ) -> Delta:
        """The last delta of this sequence, with the news of its last row."""
        life = self.life
        timing = SequenceTiming(
            arrival_s=life.arrival_s,
            first_scheduled_s=life.first_scheduled_s,
            first_token_s=life.first_token_s,
            finished_s=now_s,
            num_steps=self.times.num_steps,
            prefill_tokens=life.prefill_tokens,
            waits=tuple((reason.value, seconds) for reason, seconds in life.waits.items()),
            num_drafts_checked=self.track.num_checked if self.track else 0,
            num_drafts_accepted=self.track.num_accepted if self.track else 0,
            drafts=self.track.story.report() if self.track else None,
            timeline=self.timeline(now_s, life.waits),
        )
        news = news or Delta(request_id=self.request_id)
        return Delta(
            request_id=self.request_id,
            new_ids=news.new_ids,
            logprobs=news.logprobs,
            prompt_logprobs=news.prompt_logprobs,
            finish=finish,
            stop_id=news.stop_id,
            cached_tokens=news.cached_tokens,
            num_preempted=life.num_preempted,
            error=trouble[0],
            error_kind=trouble[1],
            timing=timing,
            pooled=news.pooled,
            beams=news.beams,
        )
