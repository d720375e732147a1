"""A runner without a model: runs step plans on numbers, in virtual time.

The simulated KV entry of a position is a digest of everything before it, read through the block table, so a
wrong block, a missed copy or a key that forgets something changes every token that follows. The next token is
a function of all entries the row can see, the seed and the position: what a request gets alone is what it
must get in any company.

    entry[p] = mix(entry[p - 1], token[p], domain)        token[p + 1] = draw(entries [0, p], seed, p + 1)

Time is virtual: a step costs `SimCost`, so the real scheduler can be run against any machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack

from headrace.base.errors import InvariantError
from headrace.base.ids import BlockId, SlotId
from headrace.base.request import Request
from headrace.base.step import (
    Drafted,
    MoveKind,
    Row,
    RowResult,
    SlotBegin,
    StepPlan,
    StepResult,
    TokenLogprobs,
    Wants,
)
from headrace.base.tasks import BeamSearch, Pooling
from headrace.host.kv.keys import Domain


class SimClock:
    """Virtual monotonic seconds."""

    def __init__(self, start_s: float = 1.0) -> None:
        self.time_s = start_s

    def now_s(self) -> float:
        """The present."""
        return self.time_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.time_s += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCost:
    """Seconds of a step: overhead, and parts per decoding row, draft checked, prompt token, position."""

    step_s: float = 0.0
    decode_row_s: float = 0.0
    draft_s: float = 0.0
    prefill_token_s: float = 0.0
    context_token_s: float = 0.0
    propose_s: float = 0.0
    """Of each draft made."""

    def seconds(self, rows: Sequence[Row]) -> float:
        """What a step with these rows takes."""
        total = self.step_s
        for row in rows:
            is_decode = row.count - row.num_drafts == 1 and row.sample
            total += self.decode_row_s if is_decode else self.prefill_token_s * row.count
            total += self.draft_s * row.num_drafts
            total += self.context_token_s * (row.start + row.count)
        return total


@dataclass(slots=True, eq=False)
class _Slot:
    lease: int
    request: Request
    root: int
    tokens: list[int]
    blocks: list[BlockId]
    num_output: int
    drafts: list[int] = field(default_factory=list[int])


class SimExecutor:
    """Executes plans on simulated KV.

    Args:
        num_blocks: blocks of the pool.
        block_size: positions of a block.
        vocab: token ids are drawn from [0, vocab).
        num_drafts: most drafts proposed after a row; as many as the row asks for.
        draft_hits: share of drafts, in 1/256, that are the token that will be drawn.
        cost: virtual seconds of a step.
        clock: advanced by each step.

    Raises (from `run`):
        InvariantError: a plan that a real runner could not execute: stale lease, unwritten KV, unknown slot.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        vocab: int = 97,
        num_drafts: int = 0,
        cost: SimCost | None = None,
        clock: SimClock | None = None,
    ) -> None:
        self.clock = clock or SimClock()
        self.draft_hits = 150
        self._size = block_size
        self._vocab = vocab
        self._num_drafts = num_drafts
        self._cost = cost or SimCost()
        self._kv: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._slots: dict[SlotId, _Slot] = {}

    @property
    def num_slots_in_use(self) -> int:
        """Slots that began and have not ended."""
        return len(self._slots)

    def run(self, plan: StepPlan) -> StepResult:
        """Execute one plan, in the order ends, begins, moves, rows."""
        for slot in plan.ends:
            self._slots.pop(slot, None)
        for begin in plan.begins:
            self._begin(begin)
        for move in plan.moves:
            if (
                move.kind is not MoveKind.COPY
                or not isinstance(move.src, int)
                or not isinstance(move.dst, int)
            ):
                raise InvariantError(f"the simulator only copies blocks, got {move}")
            self._kv[move.dst] = list(self._kv[move.src])
        for row in plan.rows:
            self._write(row)
        results = tuple(self._read(row) for row in plan.rows)
        draft_s = self._cost.propose_s * sum(result.num_drafts for result in results)
        seconds = self._cost.seconds(plan.rows) + draft_s
        self.clock.advance(seconds)
        return StepResult(step=plan.step, rows=results, seconds=seconds, draft_s=draft_s)

    def _begin(self, begin: SlotBegin) -> None:
        if begin.slot in self._slots:
            raise InvariantError(f"slot {begin.slot} begins while in use")
        self._slots[begin.slot] = _Slot(
            lease=begin.lease,
            request=begin.request,
            root=root_entry(begin.request),
            tokens=list(begin.token_ids),
            blocks=list(begin.blocks),
            num_output=len(begin.token_ids) - len(begin.request.prompt_ids),
        )

    def _slot(self, row: Row) -> _Slot:
        slot = self._slots.get(row.slot)
        if slot is None or slot.lease != row.lease:
            raise InvariantError(f"row for slot {row.slot} with lease {row.lease}, which is not there")
        return slot

    def _write(self, row: Row) -> None:
        """All rows write before any reads: a row must not depend on its neighbours' order."""
        slot, size = self._slot(row), self._size
        for i, block in row.swapped:
            slot.blocks[i] = block
        slot.blocks.extend(row.new_blocks)
        stream = slot.tokens + slot.drafts[: row.num_drafts]
        if row.start + row.count > len(stream) or row.start + row.count > len(slot.blocks) * size:
            raise InvariantError(
                f"row [{row.start}, {row.start + row.count}) beyond {len(stream)} tokens, "
                f"{len(slot.blocks)} blocks"
            )
        for p in range(row.start, row.start + row.count):
            before = self._entry(slot, p - 1) if p else slot.root
            self._kv[slot.blocks[p // size]][p % size] = mix(before, stream[p])

    def _read(self, row: Row) -> RowResult:
        slot = self._slot(row)
        entries = [self._entry(slot, p) for p in range(row.start + row.count)]
        prompt_logprobs = self._prompt_logprobs(slot, row, entries)
        if row.wants & Wants.HIDDEN and row.start + row.count == len(slot.tokens):
            return RowResult(slot=row.slot, lease=row.lease, pooled=pooled(slot.request, entries))
        if not row.sample:
            return RowResult(slot=row.slot, lease=row.lease, prompt_logprobs=prompt_logprobs)
        known = row.start + row.count - row.num_drafts
        if known != len(slot.tokens):
            raise InvariantError(f"slot {row.slot} draws after {known} tokens, but has {len(slot.tokens)}")
        drawn: list[int] = []
        for i in range(row.num_drafts + 1):
            drawn.append(draw(slot.request, entries[: known + i], slot.num_output + i, self._vocab))
            if i == row.num_drafts or slot.drafts[i] != drawn[-1]:
                break
        judged = min(len(drawn), len(slot.drafts))
        agreed = next((i for i in range(judged) if slot.drafts[i] != drawn[i]), judged)
        slot.tokens += drawn
        slot.num_output += len(drawn)
        slot.drafts = self._propose(slot, min(self._num_drafts, row.max_drafts))
        logprobs: tuple[TokenLogprobs, ...] = ()
        if isinstance(slot.request.task, BeamSearch):
            logprobs = (offers(slot.request, entries[:known], drawn[0], self._vocab),)
        elif slot.request.sampling.logprobs is not None:
            logprobs = tuple(logprob(entries[: known + i], t) for i, t in enumerate(drawn))
        return RowResult(
            slot=row.slot,
            lease=row.lease,
            tokens=tuple(drawn),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_drafts=len(slot.drafts),
            num_judged=judged,
            num_agreed=agreed,
            drafted=Drafted("sim" if slot.drafts else ""),
        )

    def _propose(self, slot: _Slot, count: int) -> list[int]:
        """Drafts that are right about as often as `draft_hits` says, chosen by a digest."""
        drafts: list[int] = []
        if count == 0:
            return drafts
        entries = fold(slot.request, slot.tokens)
        for i in range(count):
            token = draw(slot.request, entries, slot.num_output + i, self._vocab)
            is_right = _digest(*entries[-1:], 7, i) % 256 < self.draft_hits
            drafts.append(token if is_right else (token + 1) % self._vocab)
            entries.append(mix(entries[-1], drafts[-1]))
        return drafts

    def _prompt_logprobs(self, slot: _Slot, row: Row, entries: list[int]) -> tuple[TokenLogprobs, ...]:
        if not row.wants & Wants.PROMPT_LOGPROBS:
            return ()
        last = min(row.start + row.count, len(slot.request.prompt_ids) - 1)
        return tuple(logprob(entries[:p], slot.tokens[p]) for p in range(row.start + 1, last + 1))

    def _entry(self, slot: _Slot, position: int) -> int:
        entry = self._kv[slot.blocks[position // self._size]][position % self._size]
        if entry is None:
            raise InvariantError(f"position {position} reads KV that nobody wrote")
        return entry


def _digest(*values: int) -> int:
    return int.from_bytes(blake2b(pack(f"<{len(values)}Q", *values), digest_size=8).digest(), "little")


def root_entry(request: Request) -> int:
    """What stands before the first position: the KV's domain (a salt changes no KV)."""
    domain = Domain(adapter=request.adapter, kv_domain=request.kv_domain)
    return int.from_bytes(domain.root()[:8], "little")


def mix(before: int, token: int) -> int:
    """The entry of a position after entry `before`."""
    return _digest(before, token)


def fold(request: Request, tokens: Sequence[int]) -> list[int]:
    """The entries of a whole sequence."""
    entries: list[int] = []
    for token in tokens:
        entries.append(mix(entries[-1] if entries else root_entry(request), token))
    return entries


def draw(request: Request, entries: Sequence[int], num_output: int, vocab: int) -> int:
    """The token after these entries; end ids are banned before `min_tokens` are drawn."""
    banned = request.end_ids if num_output < request.sampling.min_tokens else frozenset[int]()
    token = _digest(request.sampling.seed or 0, len(entries), *entries) % vocab
    for _ in range(vocab):
        if token not in banned:
            break
        token = (token + 1) % vocab
    return token


def logprob(entries: Sequence[int], token: int) -> TokenLogprobs:
    """A made-up log-probability that depends on all entries before the token."""
    value = _digest(len(entries), *entries, token)
    return TokenLogprobs(token_id=token, logprob=-(value % 10_000) / 1000.0, rank=1 + value % 7)


def offers(request: Request, entries: Sequence[int], drawn: int, vocab: int) -> TokenLogprobs:
    """What a beam offers after these entries: made-up log-probabilities, the most likely first."""
    count = request.task.num_offers if isinstance(request.task, BeamSearch) else 0
    values = [(logprob(entries, token).logprob, token) for token in range(vocab)]
    best = sorted(values, key=lambda item: (-item[0], item[1]))[:count]
    return TokenLogprobs(
        token_id=drawn,
        logprob=logprob(entries, drawn).logprob,
        rank=1,
        top_ids=tuple(token for _, token in best),
        top_logprobs=tuple(value for value, _ in best),
    )


def pooled(request: Request, entries: Sequence[int]) -> bytes:
    """A made-up pooled vector that depends on all entries of the prompt and on the kind of pooling."""
    kind = int(request.task is Pooling.MEAN)
    return pack("<Q", _digest(kind, *entries))


def solo(request: Request, vocab: int = 97) -> tuple[int, ...]:
    """The output that a request gets alone, by definition: no blocks, no batches, no steps."""
    entries = fold(request, request.prompt_ids)
    output: list[int] = []
    for i in range(request.sampling.max_tokens or 0):
        output.append(draw(request, entries, i, vocab))
        entries.append(mix(entries[-1], output[-1]))
        if output[-1] in request.end_ids and i >= request.sampling.min_tokens:
            break
    return tuple(output)
