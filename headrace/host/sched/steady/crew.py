"""Sequences that decode in every step together, and what is known of all until one comes, goes or ends."""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass

from headrace.base.ids import RequestId, SlotId
from headrace.base.step import Delta, RowResult
from headrace.host.sched.fair.account import Account
from headrace.host.sched.sequence import Sequence
from headrace.host.timeline.times import Together

_NOTHING_MORE = RowResult(SlotId(0), 0)[4:]
"""What the result of a row says besides its token and what is reported of it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Crew:
    """Gathered between two steps. Lists are in the order of rows, which is that of ranks."""

    sequences: tuple[Sequence, ...]
    places: list[tuple[SlotId, int]]
    """Slots and leases."""
    names: list[tuple[RequestId, int]]
    """With how often each was preempted."""
    owners: dict[int, RequestId]
    """By lease."""
    starts: list[int]
    """The positions that the next step computes."""
    block_starts: list[list[int]]
    """Those whose position begins a block, by the steps since the gathering modulo the block size."""
    shares: list[tuple[Account, int]]
    """Tokens of a step by account."""
    end_ids: frozenset[int]
    """The end ids of all."""
    steps_left: int
    """Steps until the first reaches its limit."""
    time: Together
    age: int = 0
    """Steps since the gathering."""

    @classmethod
    def gather(cls, running: Items[Sequence], block_size: int) -> "Crew | None":
        """Of those who run; None: one of them wants something else than the next token of its answer."""
        places = [(seq.slot, seq.lease) for seq in running if seq.slot is not None and _goes_on(seq)]
        if len(places) < len(running):
            return None
        for seq in running:
            seq.times.part()
        if len({seq.times.until_s for seq in running}) != 1:
            return None
        time = Together(running[0].times.until_s)
        block_starts: list[list[int]] = [[] for _ in range(block_size)]
        for i, seq in enumerate(running):
            seq.times.join(time)
            block_starts[-seq.num_computed % block_size].append(i)
        return cls(
            sequences=tuple(running),
            places=places,
            names=[(seq.request_id, seq.life.num_preempted) for seq in running],
            owners={seq.lease: seq.request_id for seq in running},
            starts=[seq.num_computed for seq in running],
            block_starts=block_starts,
            shares=list(Counter(seq.account for seq in running).items()),
            end_ids=frozenset[int]().union(*(seq.end_ids for seq in running)),
            steps_left=min(seq.max_tokens - seq.num_output for seq in running),
            time=time,
        )

    def at_block_start(self) -> list[int]:
        """Those whose next position begins a block."""
        return self.block_starts[self.age % len(self.block_starts)]

    def tokens_of(self, rows: Items[RowResult]) -> list[int] | None:
        """The tokens of a step after which everybody goes on; None: it is no such step."""
        if len(rows) != len(self.places) or self.steps_left <= 1:
            return None
        tokens: list[int] = []
        for (_, lease), row in zip(self.places, rows, strict=True):
            if row.lease != lease or len(row.tokens) != 1 or row[4:] != _NOTHING_MORE:
                return None
            tokens.append(row.tokens[0])
        return None if self._ends_any(tokens) else tokens

    def _ends_any(self, tokens: list[int]) -> bool:
        """Whether somebody's answer ends with its token; nobody is at its limit yet."""
        return not self.end_ids.isdisjoint(tokens) and any(
            seq.ends_at(token, seq.num_output) for seq, token in zip(self.sequences, tokens, strict=True)
        )

    def advance(self, tokens: list[int], rows: Items[RowResult]) -> list[Delta]:
        """Append what was drawn, and go one position on."""
        ends = [start + 1 for start in self.starts]
        for seq, token, end in zip(self.sequences, tokens, ends, strict=True):
            seq.tokens.append(token)
            seq.pending = 0
            seq.num_valid = end
        for account, num_tokens in self.shares:
            account.give_output(num_tokens)
        self.starts = ends
        self.age += 1
        self.steps_left -= 1
        return [
            Delta(name, row.tokens, row.logprobs, num_preempted=num_preempted)
            for (name, num_preempted), row in zip(self.names, rows, strict=True)
        ]


def _goes_on(seq: Sequence) -> bool:
    """Whether its next row computes the last token of its answer, and nothing more than a token is wanted."""
    num_tokens = len(seq.tokens)
    is_plain = seq.track is None and seq.draws and not seq.is_beam and not seq.rejoins
    is_settled = seq.num_valid == seq.num_computed == num_tokens - 1  # nothing is under way
    reports = seq.request.sampling.prompt_logprobs is not None
    return is_plain and is_settled and not reports and num_tokens > seq.num_prompt
