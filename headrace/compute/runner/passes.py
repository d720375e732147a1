"""A step in bounded pieces: rows that want the log-probabilities of their prompt want logits of every token.

Logits are wide (V floats each), so such rows are cut into pieces, and pieces go into as many passes of the
program as the bound on logits asks for. Cutting a row changes nothing: computing a prompt in pieces is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.step import Row, Wants


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, start + count) of a row; `draws` of its last tokens draw, all report when `reports`."""

    row: int
    slot: int
    start: int
    count: int
    draws: int
    reports: bool

    @property
    def logits(self) -> int:
        """Rows of logits it wants."""
        return self.count if self.reports else self.draws


def passes(rows: Sequence[Row], max_logits: int) -> list[list[Piece]]:
    """Cut rows into pieces, and pieces into passes of at most `max_logits` logits."""
    plain = [_whole(i, row) for i, row in enumerate(rows) if not _reports(row)]
    reporting = [(i, row) for i, row in enumerate(rows) if _reports(row)]
    if not reporting:
        return [plain]
    out = [plain] if plain else []
    left = max_logits - sum(p.logits for p in plain) if plain else 0
    for i, row in reporting:
        done = 0
        while done < row.count:
            if left < 1 or (out and out[-1] and out[-1][-1].row == i):
                out.append([])
                left = max_logits
            size = _size(row, done, left)
            if not size:
                left = 0
                continue
            end = done + size
            draws = row.num_drafts + 1 if row.sample and end == row.count else 0
            out[-1].append(Piece(i, int(row.slot), row.start + done, size, draws, reports=True))
            done, left = end, left - size
    return out


def _reports(row: Row) -> bool:
    # An empty flag is falsy; the bit operation of an enum costs a microsecond per row.
    return bool(row.wants) and bool(row.wants & Wants.PROMPT_LOGPROBS)


def _size(row: Row, done: int, left: int) -> int:
    """Tokens of the next piece; the tokens that draw stay together."""
    rest = row.count - done
    if rest <= left or not row.sample:
        return min(rest, left)
    return min(left, rest - row.num_drafts - 1)


def _whole(index: int, row: Row) -> Piece:
    draws = row.num_drafts + 1 if row.sample else 0
    return Piece(index, int(row.slot), row.start, row.count, draws, reports=False)
