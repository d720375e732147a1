"""Blocks and the index over what they hold, kept in agreement: every change that touches both."""

from collections.abc import Sequence

from headrace.base.ids import BlockId
from headrace.base.step import BlockMove, MoveKind
from headrace.host.kv.keys import KeyChain
from headrace.host.kv.pool import BlockPool
from headrace.host.kv.prefix import PrefixIndex
from headrace.host.kv.table import BlockTable


class KeyedPool:
    """The pool and the prefix index of one ledger, which is its only user.

    Args:
        pool: references and keys.
        index: finds blocks by key.
        block_size: positions of a block.
        is_on: whether blocks are found and published at all.
    """

    def __init__(self, pool: BlockPool, index: PrefixIndex, block_size: int, *, is_on: bool) -> None:
        self._pool = pool
        self._index = index
        self._size = block_size
        self._is_on = is_on

    def take(self) -> BlockId:
        """A block with one reference; the key it lost by eviction leaves the index."""
        block, evicted = self._pool.take()
        if evicted is not None:
            self._index.evict(evicted)
        return block

    def find(self, tokens: Sequence[int], chain: KeyChain, max_cached: int | None) -> list[BlockId]:
        """The blocks of the longest cached prefix that leaves a token to compute; `chain` is extended."""
        if not self._is_on:
            return []
        most = len(tokens) - 1 if max_cached is None else min(len(tokens) - 1, max_cached)
        usable = most // self._size
        return self._index.find(chain.extend(tokens, usable), usable) if usable > 0 else []

    def publish(self, table: BlockTable, tokens: Sequence[int], num_full: int) -> None:
        """Make the first `num_full` blocks of a table findable."""
        if not self._is_on:
            return
        keys = table.chain.extend(tokens, num_full)
        for i in range(table.num_published, num_full):
            block = table.blocks[i]
            self._index.remember(table.chain, i, tokens)
            if self._pool.keys[block] is None and self._index.insert(keys[i], block, table.chain.tenant):
                self._pool.keys[block] = keys[i]
        table.num_published = num_full

    def withdraw(self, blocks: Sequence[BlockId]) -> None:
        """Forget content that its only holder will overwrite (a fork that outlived its parent)."""
        for block in blocks:
            key = self._pool.keys[block]
            if key is not None and self._pool.refs[block] == 1:
                self._index.withdraw(key)
                self._pool.keys[block] = None

    def unshare(self, table: BlockTable, places: Sequence[int]) -> tuple[BlockMove, ...]:
        """Give a table blocks of its own in these places; the copies that have to be made."""
        moves: list[BlockMove] = []
        for i in places:
            old, new = table.blocks[i], self.take()
            moves.append(BlockMove(kind=MoveKind.COPY, src=old, dst=new))
            self._pool.drop(old)
            table.blocks[i] = new
        return tuple(moves)
