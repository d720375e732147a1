"""The step that is being planned."""

from collections.abc import Collection, Container
from dataclasses import dataclass, field

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId, SlotId
from headrace.base.step import BlockMove, Row, SlotBegin, StepPlan, StepResult, Wants
from headrace.host.kv.table import Grant
from headrace.host.sched.cost import StepCost
from headrace.host.sched.sequence import Sequence, WaitReason
from headrace.host.timeline.times import Prefill, StepTime, prefill_share


@dataclass(slots=True, eq=False)
class StepNotes:
    """What timelines and prices need to know about a step."""

    planned_s: float = 0.0
    host_s: float = 0.0
    """Seconds in which it was planned and committed: drafts cost some of them, beside those of the runner."""
    prefills: dict[int, Prefill] = field(default_factory=dict[int, Prefill])
    """Rows that compute a prompt, by lease."""
    held: dict[int, WaitReason] = field(default_factory=dict[int, WaitReason])
    """Why sequences that run have no row, by lease; the token budget where nothing is said."""


@dataclass(slots=True, eq=False)
class Batch:
    """Rows chosen so far; also what `commit` needs to know about them later."""

    step: int
    left: int
    """Tokens that may still be added."""
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    """By lease."""
    owners: dict[int, RequestId] = field(default_factory=dict[int, RequestId])
    begins: list[SlotBegin] = field(default_factory=list[SlotBegin])
    moves: list[BlockMove] = field(default_factory=list[BlockMove])
    num_decodes: int = 0
    num_drafts: int = 0
    num_late: int = 0
    """Of the drafts, those that the step computes."""
    num_preempted: int = 0
    """Sequences that lost their blocks for those of this step, without the background."""
    num_gave_way: int = 0
    """The same of the background."""
    notes: StepNotes = field(default_factory=StepNotes)

    def add(self, seq: Sequence, count: int, grant: Grant, begin: SlotBegin | None = None) -> None:
        """Plan `count` tokens of a running sequence, whose blocks are reserved.

        A sequence that begins in this step brings its whole table, so its row repeats none of it.
        """
        if seq.slot is None:
            raise ValueError(f"request {seq.request_id!r} has no slot")
        missing = seq.num_missing
        is_decode = missing <= 1 and seq.is_decoding
        row = Row(
            slot=seq.slot,
            lease=seq.lease,
            start=seq.num_computed,
            count=count,
            num_drafts=max(0, count - missing),
            new_blocks=() if begin else grant.new_blocks,
            swapped=() if begin else grant.swapped,
            sample=seq.draws and count >= missing,
            max_drafts=seq.max_drafts if count >= missing else 0,
            wants=_wants(seq, count),
            is_late=seq.is_late and count > missing,
        )
        self.rows[seq.lease] = row
        self.owners[seq.lease] = seq.request_id
        self.moves.extend(grant.moves)
        if begin is not None:
            self.begins.append(begin)
        if is_decode:
            self.num_decodes += 1
        else:
            name = seq.request_id.partition("\0")[0]  # a beam's own name is nobody's
            self.notes.prefills[seq.lease] = Prefill(name, seq.account.tenant.name, count)
            seq.life.prefill_tokens += count
        self.num_drafts += row.num_drafts
        self.num_late += row.num_drafts if row.is_late else 0
        self.left -= count
        seq.num_computed = row.start + count
        seq.pending += int(row.sample and not seq.is_beam)

    def add_decode(self, seq: Sequence, grant: Grant) -> None:
        """`add` for one more token of an answer, without drafts."""
        start, lease = seq.num_computed, seq.lease
        if seq.slot is None:
            raise ValueError(f"request {seq.request_id!r} has no slot")
        wants_prompt = seq.request.sampling.prompt_logprobs is not None
        self.rows[lease] = Row(
            slot=seq.slot,
            lease=lease,
            start=start,
            count=1,
            new_blocks=grant.new_blocks,
            swapped=grant.swapped,
            max_drafts=seq.max_drafts,
            wants=_wants(seq, 1) if wants_prompt else Wants.NOTHING,
        )
        self.owners[lease] = seq.request_id
        if grant.moves:
            self.moves.extend(grant.moves)
        self.num_decodes += 1
        self.left -= 1
        seq.num_computed = start + 1
        seq.pending += int(not seq.is_beam)  # what a beam draws is not its next token

    def check_answered(self, result: StepResult, live: Container[int]) -> None:
        """Every row whose lease still counts has a result.

        Raises:
            InvariantError: names one that has none.
        """
        for lease in self.rows.keys() - {row_result.lease for row_result in result.rows}:
            if lease in live:
                raise InvariantError(f"step {self.step} has no result for {self.owners[lease]!r}")

    @property
    def prefill_tokens(self) -> int:
        """Tokens of its rows that compute a prompt."""
        return sum(p.num_tokens for p in self.notes.prefills.values())

    def time(
        self, result: StepResult, now_s: float, cost: StepCost, running: Collection[Sequence]
    ) -> StepTime:
        """How the time of this step, committed now, falls to its rows; those without one get their part."""
        share, seconds = 0.0, result.seconds - result.draft_s
        if self.notes.prefills:
            decode_s = cost.decode_s(self.num_decodes)
            share = prefill_share(seconds, self.prefill_tokens, self.num_decodes, self.num_drafts, decode_s)
        time = StepTime(
            now_s=now_s,
            planned_s=self.notes.planned_s,
            seconds=result.seconds,
            draft_share=result.draft_s / result.seconds if result.draft_s else 0.0,
            prefills=self.notes.prefills,
            share=share,
        )
        if len(self.rows) < len(running):
            for seq in running:
                if seq.lease not in self.rows:
                    time.book_idle(seq.times, self._why_idle(seq))
        return time

    def _why_idle(self, seq: Sequence) -> str:
        """Why a sequence that runs has no row here; empty: prompts of others had the step for themselves."""
        if seq.offer is not None:
            return WaitReason.BEAMS.value
        if seq.lease not in self.notes.held and not self.num_decodes and seq.is_decoding:
            return ""
        return self.notes.held.get(seq.lease, WaitReason.TOKENS).value

    def plan(
        self,
        ends: tuple[SlotId, ...],
        finished: tuple[tuple[SlotId, int], ...] = (),
        repeats: tuple[int, ...] | None = None,
    ) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=self.step,
            ends=ends,
            finished=finished,
            moves=tuple(self.moves),
            begins=tuple(self.begins),
            rows=tuple(self.rows.values()),
            repeats=repeats,
        )


def _wants(seq: Sequence, count: int) -> Wants:
    if not seq.draws:
        return Wants.HIDDEN
    if seq.request.sampling.prompt_logprobs is None:
        return Wants.NOTHING
    # A row that computes positions [start, end) yields the log-probabilities of positions start+1 .. end.
    last = min(seq.num_computed + count, seq.num_prompt - 1)
    return Wants.PROMPT_LOGPROBS if last > seq.num_prompt_logprobs else Wants.NOTHING
