"""The blocks of one sequence."""

from dataclasses import dataclass

from headrace.base.ids import BlockId
from headrace.base.step import BlockMove
from headrace.host.kv.keys import KeyChain


@dataclass(slots=True, eq=False)
class BlockTable:
    """Block i holds positions [i * block_size, (i + 1) * block_size). Changed by `KVLedger` only."""

    blocks: list[BlockId]
    chain: KeyChain
    num_published: int = 0
    """Leading blocks that are full of accepted tokens and known to the prefix index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What `reserve` changed in a table, for the row that will write there."""

    new_blocks: tuple[BlockId, ...] = ()
    swapped: tuple[tuple[int, BlockId], ...] = ()
    """(table index, block) after copy-on-write."""
    moves: tuple[BlockMove, ...] = ()
    """Copies that must happen before the row runs, in this order."""


NOTHING_TO_DO = Grant()
