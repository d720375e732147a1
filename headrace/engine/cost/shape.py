"""What a step has to do, in numbers that its plan gives: tokens, rows of logits, keys, pairs of attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.step import Row
from headrace.compute.runner.work import Work

Windows = tuple[tuple[int | None, float], ...]
"""(window or None, share of the layers' attention that has it); shares add up to 1."""
_NO_WINDOW: Windows = ((None, 1.0),)


class StepWork(NamedTuple):
    """The work of a step."""

    is_decode: bool
    """Every row computes the next token of an answer (and drafts behind it)."""
    tokens: int
    logits: int
    """Rows that draw."""
    keys: float
    """Keys that rows of one token see, all rows together."""
    pairs: float
    """(query, visible key) pairs of rows of several tokens."""
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostShape:
    """What the cost of a step depends on besides the step: bytes and operations of the model."""

    weight_bytes: int
    """Of the packed weights that a step reads."""
    token_bytes: int
    """Of keys and values of one token in all layers."""
    per_token: int
    """Operations of the layers' matrices for a token."""
    per_logits: int
    """Operations of the head for a row of logits."""
    per_pair: int
    """Operations of attention for a query and a key, all layers."""
    windows: Windows
    is_float: bool
    """The matrices are multiplied in float32, not as bytes."""
    in_pairs: bool = False
    """And in pairs of bfloat16."""

    @classmethod
    def of(
        cls,
        work: Work,
        weight_bytes: int,
        token_bytes: int,
        *,
        is_float: bool = False,
        in_pairs: bool = False,
    ) -> "CostShape":
        """The shape of a model whose operations are `work`."""
        total = sum(each for _, each in work.attention) or 1
        return cls(
            weight_bytes=weight_bytes,
            token_bytes=token_bytes,
            per_token=work.per_token,
            per_logits=work.per_logits,
            per_pair=total,
            windows=tuple((window, each / total) for window, each in work.attention),
            is_float=is_float,
            in_pairs=in_pairs,
        )

    @property
    def sees_all(self) -> bool:
        """Whether every query sees all keys before it."""
        return self.windows == _NO_WINDOW

    def operations(self, work: StepWork) -> int:
        """Operations of the matrices, attention not counted."""
        return self.per_token * work.tokens + self.per_logits * work.logits

    def work_of(self, rows: Sequence[Row]) -> StepWork:
        """The work of a step with these rows. Cost: linear in rows."""
        windows, sees_all = self.windows, self.sees_all
        tokens = logits = 0
        keys = pairs = 0.0
        is_decode = True
        for row in rows:
            count = row.count
            tokens += count
            if row.sample:
                logits += 1 + row.num_drafts
            if count == 1:
                keys += row.start + 1 if sees_all else _visible(row.start + 1, windows)
            else:
                pairs += _pairs(row.start, count, windows)
            if not row.sample or count - row.num_drafts != 1:
                is_decode = False
        return StepWork(is_decode, tokens, logits, keys, pairs, len(rows))


def _visible(keys: int, windows: Windows) -> float:
    """Keys that a query with `keys` keys sees, on average over layers."""
    return sum(share * (keys if window is None else min(keys, window)) for window, share in windows)


def _pairs(start: int, count: int, windows: Windows) -> float:
    """Pairs of `count` queries from position `start` on."""
    total = 0.0
    for window, share in windows:
        if window is None:
            total += share * (count * start + count * (count + 1) / 2)
            continue
        rising = max(0, min(count, window - start))
        total += share * (rising * start + rising * (rising + 1) / 2 + (count - rising) * window)
    return total
