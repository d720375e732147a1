"""What a pass computed, told to drafters that look at hidden states (`compute/spec/states`)."""

from collections.abc import Sequence

import numpy as np

from headrace.base.step import Row, RowResult
from headrace.compute.ops.api import F32, ForwardContext
from headrace.compute.runner.draws import Outcome
from headrace.compute.runner.passes import Piece
from headrace.compute.spec.states import Seen, SeenRow


def seen_in_pass(
    pieces: Sequence[Piece], outcomes: Sequence[Outcome], context: ForwardContext, kept: Sequence[F32]
) -> Seen:
    """A pass over pieces whose tokens are drawn. Rows that failed are left out.

    Args:
        pieces: those of the pass.
        outcomes: of all rows of the step.
        context: the inputs of the pass.
        kept: what the program kept.
    """
    rows: list[SeenRow] = []
    ends = np.cumsum([piece.logits for piece in pieces]).tolist()
    firsts = context.query_start[:-1].tolist()
    for piece, first, end in zip(pieces, firsts, ends, strict=True):
        outcome = outcomes[piece.row]
        if outcome.error is not None:
            continue
        if not piece.draws:
            rows.append(SeenRow(piece.slot, piece.start, piece.count, first, -1))
            continue
        wrong = piece.draws - len(outcome.tokens)
        rows.append(SeenRow(piece.slot, piece.start, piece.count - wrong, first, end - 1 - wrong))
    return Seen(rows, context.token_ids, kept)


def seen_decoding(
    rows: Sequence[Row], results: Sequence[RowResult], context: ForwardContext, kept: Sequence[F32]
) -> Seen:
    """A pass of one token per row."""
    seen = [
        SeenRow(int(row.slot), row.start, 1, i, i)
        for i, (row, result) in enumerate(zip(rows, results, strict=True))
        if result.error is None
    ]
    return Seen(seen, context.token_ids, kept)
