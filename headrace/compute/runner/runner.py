"""The runner: `run(StepPlan) -> StepResult`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.base.clock import now_s
from headrace.base.step import Row, RowResult, StepPlan, StepResult, Wants
from headrace.compute.ops.api import F32, Backend, ForwardContext, KVPool, Program
from headrace.compute.runner.decode import Decode
from headrace.compute.runner.draws import Draws, Outcome
from headrace.compute.runner.hidden import HiddenPass
from headrace.compute.runner.inputs import Inputs, RopeRows
from headrace.compute.runner.mover import apply
from headrace.compute.runner.passes import passes
from headrace.compute.runner.seen import seen_decoding, seen_in_pass
from headrace.compute.runner.state import DeviceState
from headrace.compute.runner.work import Work, token_bytes
from headrace.compute.spec.drafting import Drafting


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """What a runner works with.

    `slot_begins(slot, prompt_len)` and `rope_rows` serve RoPE kinds whose angles depend on the length.
    """

    backend: Backend
    program: Program
    pool: KVPool
    state: DeviceState
    max_tokens: int
    max_logits: int
    max_drafts: int = 0
    slot_begins: Callable[[int, int], None] | None = None
    rope_rows: RopeRows | None = None
    drafting: Drafting | None = None
    weight_bytes: int = 0
    work: Work | None = None
    """What a step computes, for `StepResult.operations`; None: not counted."""


class Runner:
    """Executes step plans. One thread calls it.

    Args:
        parts: what it works with.
        hidden: for rows that want hidden states instead of tokens; None: no such rows.

    Raises:
        ValueError: the tokens that a row draws together do not fit a pass.
    """

    def __init__(self, parts: RunnerParts, hidden: HiddenPass | None = None) -> None:
        if parts.max_logits <= parts.max_drafts:
            raise ValueError(
                f"{parts.max_drafts} drafts and a token need more than {parts.max_logits} logits"
            )
        self.program_s = 0.0
        """Seconds in which programs ran, since start; the rest of the steps is Python and sampling."""
        self._parts = parts
        self._hidden = hidden
        self._state = parts.state
        self._inputs = Inputs(parts.state, parts.pool, parts.max_tokens, parts.rope_rows)
        self._draws = Draws(parts.state, parts.backend)
        self._decode = Decode(parts.state, parts.pool, parts.backend, parts.rope_rows)
        self._planes = (parts.pool, *(parts.drafting.planes if parts.drafting else ()))
        self._token_bytes = token_bytes(parts.pool.geometry)

    @property
    def draft_weight_bytes(self) -> int:
        """Bytes of weights that only draft."""
        return 0 if self._parts.drafting is None else self._parts.drafting.weight_bytes

    @property
    def num_draft_faults(self) -> int:
        """How often making drafts failed."""
        return 0 if self._parts.drafting is None else self._parts.drafting.num_faults

    def run(self, plan: StepPlan) -> StepResult:
        """Do what the plan says: ends, begins, moves, rows.

        Returns:
            One result per row, in plan order. A row whose logits are broken has an error; the others go on.

        Raises:
            ValueError: the plan contradicts the state of the slots (a fault of Headrace).
        """
        began_s = now_s()
        self._prepare(plan)
        if plan.rows:
            context = self._decode.prepare(plan.rows, plan.repeats)
            if context is not None:
                logits = self._compute(context)
                results = self._decode.finish(plan.rows, logits, self._parts.program.maxima)
                drafting = self._parts.drafting
                if drafting is not None:
                    if drafting.watches:
                        kept = self._parts.program.kept
                        drafting.observe(seen_decoding(plan.rows, results, context, kept))
                    self._draft(drafting, plan.rows, results)
                return self._result(plan, results, began_s, *self._cost(context, self._decode.num_keys))
        return self._run_in_passes(plan, began_s)

    def _run_in_passes(self, plan: StepPlan, began_s: float) -> StepResult:
        """Steps of any kind."""
        self._decode.forget()
        for row in plan.rows:
            self._state.update(row)
        whole = self._with_drafts(plan.rows)
        pooled = [row for row in whole if row.wants and row.wants & Wants.HIDDEN]
        rows = [row for row in whole if not row.wants & Wants.HIDDEN] if pooled else whole
        outcomes = [Outcome() for _ in rows]
        bytes_read = operations = 0
        is_first = True
        for pieces in passes(rows, self._parts.max_logits) if rows else ():
            context = self._inputs.gather(pieces)
            logits = self._compute(context)
            if is_first:  # not before: the masks are made while the program runs
                self._state.sampling.set_masks(plan.masks)
                is_first = False
            self._draws.take(pieces, logits, outcomes, self._parts.program.maxima)
            drafting = self._parts.drafting
            if drafting is not None and drafting.watches:
                drafting.observe(seen_in_pass(pieces, outcomes, context, self._parts.program.kept))
            read, done = self._cost(context, int(context.key_len.sum()))
            bytes_read, operations = bytes_read + read, operations + done
        results = [self._close(row, out) for row, out in zip(rows, outcomes, strict=True)]
        if self._parts.drafting is not None:
            self._draft(self._parts.drafting, rows, results)
        if pooled:
            made, read, done = self._run_hidden(pooled)
            bytes_read, operations = bytes_read + read, operations + done
            by_slot = {result.slot: result for result in (*results, *made)}
            results = [by_slot[row.slot] for row in plan.rows]
        if whole is not plan.rows:
            _tell_unmade(plan.rows, whole, results)
        return self._result(plan, results, began_s, bytes_read, operations)

    def _run_hidden(self, rows: Sequence[Row]) -> tuple[list[RowResult], int, int]:
        """Results of rows that want hidden states, bytes read, operations."""
        hidden = self._hidden
        if hidden is None:
            raise ValueError("rows want hidden states, and this runner has no program for them")
        pieces = hidden.pieces(rows)
        context = self._inputs.gather(pieces)
        began_s = now_s()
        states = hidden.run(context)
        self.program_s += now_s() - began_s
        read, done = self._cost(context, int(context.key_len.sum()), has_head=False)
        return hidden.take(rows, pieces, states), read, done

    def _compute(self, context: ForwardContext) -> F32:
        """Logits of one pass."""
        began_s = now_s()
        logits = self._parts.program.run(context)
        self.program_s += now_s() - began_s
        return logits

    def _cost(self, context: ForwardContext, num_keys: int, *, has_head: bool = True) -> tuple[int, int]:
        """Bytes read and operations of one pass, whose rows have `num_keys` keys in all."""
        work = self._parts.work
        bytes_read = self._parts.weight_bytes + num_keys * self._token_bytes
        return bytes_read, 0 if work is None else work.operations(context, num_keys, has_head=has_head)

    def _result(
        self, plan: StepPlan, rows: Sequence[RowResult], began_s: float, bytes_read: int, operations: int
    ) -> StepResult:
        drafting = self._parts.drafting
        return StepResult(
            step=plan.step,
            rows=tuple(rows),
            draft_s=0.0 if drafting is None else drafting.take_seconds(),
            seconds=now_s() - began_s,
            bytes_read=bytes_read + (0 if drafting is None else drafting.take_bytes()),
            operations=operations,
        )

    def _prepare(self, plan: StepPlan) -> None:
        state = self._state
        if plan.ends or plan.begins:
            self._decode.forget()
        drafting = self._parts.drafting
        if drafting is not None:
            _keep_answers(drafting, plan, state)
        for slot in plan.ends:
            state.end(int(slot))
            if drafting is not None:
                drafting.end(int(slot))
        for begin in plan.begins:
            state.begin(begin)
            if drafting is not None:
                drafting.begin(int(begin.slot), begin.request)
            if self._hidden is not None:
                self._hidden.begin(begin)
            if self._parts.slot_begins is not None:
                self._parts.slot_begins(int(begin.slot), len(begin.request.prompt_ids))
        apply(plan.moves, self._planes)

    def _close(self, row: Row, outcome: Outcome) -> RowResult:
        """Take drawn tokens into the slot."""
        if outcome.error is not None:
            return RowResult(
                slot=row.slot,
                lease=row.lease,
                error=outcome.error,
                prompt_logprobs=tuple(outcome.prompt_logprobs),
            )
        if row.sample:
            self._state.append(int(row.slot), outcome.tokens)
        return RowResult(
            slot=row.slot,
            lease=row.lease,
            tokens=tuple(outcome.tokens),
            logprobs=tuple(outcome.logprobs),
            prompt_logprobs=tuple(outcome.prompt_logprobs),
        )

    def _with_drafts(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Write the drafts that rows check behind their sequences; rows shrink by those that were not made.

        Raises:
            ValueError: a slot holds fewer than were told.
        """
        checking = [row for row in rows if row.num_drafts]
        if not checking:
            return rows
        drafting, most = self._parts.drafting, self._parts.max_drafts
        made: dict[int, list[int]] = {}
        if drafting is not None:
            late = [(int(row.slot), min(row.num_drafts, most)) for row in checking if row.is_late]
            made = drafting.propose_late(late) if late else made
        found = list(rows)
        for i, row in enumerate(rows):
            if not row.num_drafts:
                continue
            slot = int(row.slot)
            held = made if row.is_late else {} if drafting is None else drafting.held
            drafts = held.get(slot, [])
            count = min(len(drafts), most, row.num_drafts)
            if count < row.num_drafts:
                if not row.is_late:
                    raise ValueError(
                        f"slot {slot} is to check {row.num_drafts} drafts and holds {len(drafts)}"
                    )
                found[i] = replace(row, count=row.count - row.num_drafts + count, num_drafts=count)
            self._state.draft(slot, drafts[:count])
        return found

    def _draft(self, drafting: Drafting, rows: Sequence[Row], results: list[RowResult]) -> None:
        """Compare the drafts that slots held with what was drawn, and propose new ones."""
        state, wanted, places = self._state, list[tuple[int, int]](), list[int]()
        for i, (row, result) in enumerate(zip(rows, results, strict=True)):
            slot = int(row.slot)
            if not result.tokens:
                continue
            is_known = drafting.grow(slot, row.start + row.count - row.num_drafts, result.tokens)
            if not (row.max_drafts or slot in drafting.held):
                continue
            judged, agreed = drafting.agree(slot, result.tokens)
            results[i] = result._replace(num_judged=judged, num_agreed=agreed)
            if not row.max_drafts:
                continue
            places.append(i)
            if not drafting.has_lookups(slot):
                continue
            if not is_known:
                self._decode.forget()  # writes what was drawn to the slots
                drafting.know(slot, state.tokens[slot, : state.num_tokens[slot]].tolist())
            wanted.append((slot, min(row.max_drafts, self._parts.max_drafts)))
        counts = drafting.propose(wanted) if wanted else ()
        held = {slot: count for (slot, _), count in zip(wanted, counts, strict=True)}
        for i in places:
            slot, most = int(rows[i].slot), min(rows[i].max_drafts, self._parts.max_drafts)
            promised = drafting.promised(slot, most)
            results[i] = results[i]._replace(num_drafts=held.get(slot, 0), drafted=promised)


def _keep_answers(drafting: Drafting, plan: StepPlan, state: DeviceState) -> None:
    """Show whole answers to those who remember them, before their slots are left."""
    for slot, num_tokens in plan.finished:
        if drafting.remembers(int(slot)):
            drafting.keep(int(slot), state.tokens[slot, state.num_prompt[slot] : num_tokens].tolist())


def _tell_unmade(planned: Sequence[Row], rows: Sequence[Row], results: list[RowResult]) -> None:
    """Say in the results how many drafts rows lack of those planned."""
    for i, (plan, row) in enumerate(zip(planned, rows, strict=True)):
        if row is not plan:
            results[i] = results[i]._replace(num_unmade=plan.num_drafts - row.num_drafts)
