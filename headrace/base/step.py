"""The values that cross the seam between decisions and execution: plan -> run -> commit.

Of `Row`, `RowResult` and `Delta` one is made per row and step, of `StepPlan` and `StepResult` one per step,
so they are of the kinds that are made fastest: a frozen dataclass takes three to four times as long. Nobody
changes them all the same (`docs/adr/0002-values-of-a-step.md`).
"""

from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import NamedTuple, Protocol

from headrace.base.ids import BlockId, BlockKey, RequestId, SlotId
from headrace.base.metrics.drafts import DraftReport
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import FinishReason, Request


class MoveKind(Enum):
    """What happens to a block before the rows of a step run."""

    COPY = "copy"
    ZERO = "zero"
    LOAD = "load"
    SAVE = "save"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMove:
    """Move `src` to `dst` before the rows run; keys name blocks of a store."""

    kind: MoveKind
    src: BlockId | BlockKey | None
    dst: BlockId | BlockKey
    store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBegin:
    """A sequence enters a slot: its whole state so far.

    `token_ids` are prompt and output so far (a preempted sequence comes back with its output); the first
    `len(request.prompt_ids)` of them are the prompt. `blocks` is the whole table, what this step's row needs
    included.
    """

    slot: SlotId
    lease: int
    request: Request
    token_ids: tuple[int, ...]
    blocks: tuple[BlockId, ...]


class Wants(IntFlag):
    """Extra outputs a row asks for."""

    NOTHING = 0
    PROMPT_LOGPROBS = 1
    HIDDEN = 2


@dataclass(slots=True, kw_only=True)
class Row:
    """Compute tokens [start, start + count) of the sequence in `slot`.

    The last `num_drafts` of them are drafts.
    """

    slot: SlotId
    lease: int
    start: int
    count: int
    num_drafts: int = 0
    new_blocks: tuple[BlockId, ...] = ()
    """Appended to the slot's table."""
    swapped: tuple[tuple[int, BlockId], ...] = ()
    """(table index, block) replaced after copy-on-write."""
    sample: bool = True
    """Draw a token after the last one (false for a chunk that does not reach the end)."""
    max_drafts: int = 0
    """Most drafts to propose after what is drawn, for the next row."""
    wants: Wants = Wants.NOTHING
    is_late: bool = False
    """Its drafts are computed at the start of the step, instead of those that the slot holds."""

    def __post_init__(self) -> None:
        """Refuse rows that mean nothing."""
        if self.count < 1 or not 0 <= self.num_drafts < self.count or self.start < 0:
            raise ValueError(
                f"impossible row: start {self.start}, count {self.count}, drafts {self.num_drafts}"
            )


class StepMasks(Protocol):
    """The tokens that rows may draw; made while the step computes, and taken when it draws."""

    slots: tuple[SlotId, ...]
    """The slot of each mask; rows under a grammar check no drafts."""

    def take(self) -> memoryview:
        """Wait for the masks.

        Returns:
            [len(slots) * ceil(V / 32)] words of 32 bits, slot after slot: bit id % 32 of word id // 32.
        """
        ...


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """What one step does, in this order: ends, begins, moves, rows.

    Slots are freed first, then sequences enter; a slot may end and begin in the same plan.
    """

    step: int
    ends: tuple[SlotId, ...] = ()
    finished: tuple[tuple[SlotId, int], ...] = ()
    """Of the ends, (slot, tokens of prompt and answer) of those whose answers are whole."""
    moves: tuple[BlockMove, ...] = ()
    begins: tuple[SlotBegin, ...] = ()
    rows: tuple[Row, ...] = ()
    repeats: tuple[int, ...] | None = None
    """The rows are those of the step before, each one position on, and nobody came or went between the two:
    which of them bring blocks. None: they need not be."""
    masks: StepMasks | None = None
    """Of rows that sample under a grammar."""

    @property
    def num_tokens(self) -> int:
        """Tokens this step computes."""
        return sum(r.count for r in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Raw log-probability (natural log) of a token, its rank (1 = most likely), the k most likely tokens."""

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Drafted(NamedTuple):
    """What the next row of a slot can check besides, or instead of, the drafts that it holds."""

    by: str = ""
    """The method that made those that it holds; empty: it holds none."""
    num_late: int = 0
    """Drafts that can be computed at the start of the next step."""


NOTHING_DRAFTED = Drafted()


class RowResult(NamedTuple):
    """What a row produced.

    `tokens` are the accepted drafts followed by the token drawn after them (empty when the row does not
    sample); `prompt_logprobs` are those of prompt tokens start+1 .. start+count, as far as they lie in the
    prompt.
    """

    slot: SlotId
    lease: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_drafts: int = 0
    """Drafts that the slot holds for the next step."""
    num_judged: int = 0
    """Drafts that it held before and that can be compared with the tokens, checked by the row or not."""
    num_agreed: int = 0
    """Those of them that agree, up to the first that does not."""
    num_unmade: int = 0
    """Drafts that the row was to check and that could not be made for it."""
    error: str | None = None
    """The row failed (NaN logits ...); the sequence ends with an error, others go on."""
    pooled: bytes = b""
    """The pooled hidden states, little-endian float32, with the row that ends a prompt to be pooled."""
    drafted: Drafted = NOTHING_DRAFTED


@dataclass(slots=True, kw_only=True)
class StepResult:
    """The outcome of a plan, rows in plan order, with what it cost."""

    step: int
    rows: tuple[RowResult, ...]
    seconds: float = 0.0
    draft_s: float = 0.0
    """Seconds of `seconds` in which drafts were made."""
    bytes_read: int = 0
    operations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTiming:
    """Moments of a sequence's life, monotonic seconds, and what it cost in steps."""

    arrival_s: float
    first_scheduled_s: float
    first_token_s: float
    finished_s: float
    num_steps: int
    prefill_tokens: int
    """Prompt tokens computed (not cached), recomputation included."""
    waits: tuple[tuple[str, float], ...] = ()
    """(reason, seconds) spent waiting; the values of `WaitReason` in `host/sched/sequence`."""
    num_drafts_checked: int = 0
    num_drafts_accepted: int = 0
    drafts: DraftReport | None = None
    timeline: Timeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """An answer that a beam search found."""

    token_ids: tuple[int, ...]
    """Its tokens, the end token included."""
    logprob: float
    """Sum of the log-probabilities of its tokens."""
    score: float
    """What it was ranked by; see `host/sched/beams/search`."""
    finish: FinishReason


class Delta(NamedTuple):
    """News of one sequence after a commit, in token ids (text is made in the client process)."""

    request_id: RequestId
    new_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish: FinishReason | None = None
    stop_id: int | None = None
    """The end or stop token that ended the sequence (it is the last of `new_ids`)."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at first admission."""
    num_preempted: int = 0
    error: str | None = None
    error_kind: str = ""
    """The class of the error in `base/errors`; empty: the row failed (NaN logits ...)."""
    timing: SequenceTiming | None = None
    """Given with the last delta."""
    pooled: bytes = b""
    """The prompt's pooled hidden states, little-endian float32; given with the last delta."""
    beams: tuple[Hypothesis, ...] = ()
    """The best answers of a beam search, best first; given with the last delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All news of one commit."""

    step: int
    deltas: tuple[Delta, ...]
