"""The KV ledger: the only code that changes references, keys and block tables.

Invariants (`check`): the references of a block are the number of tables that hold it; every block is held,
cached or free, and only one of them; the index and the keys of the blocks agree; a key covers its parent, its
tokens and its domain; a published block is full of accepted tokens.
"""

from collections.abc import Callable, Sequence

from headrace.base.clock import now_s
from headrace.base.errors import ConfigError, InvariantError
from headrace.base.ids import BlockId, RequestId
from headrace.host.kv.audit import check_books
from headrace.host.kv.keyed import KeyedPool
from headrace.host.kv.keys import KeyChain
from headrace.host.kv.pool import BlockPool
from headrace.host.kv.prefix import PrefixIndex, PrefixLookups, PrefixStats
from headrace.host.kv.table import NOTHING_TO_DO, BlockTable, Grant


class KVLedger:
    """Who holds which block.

    Args:
        num_blocks: blocks of the pool that are really usable.
        block_size: positions of a block.
        prefix_cache: find and publish blocks by content.
        clock_s: monotonic seconds, to say how long ago a block was evicted.

    Raises:
        ConfigError: a size is not positive.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_cache: bool = True,
        clock_s: Callable[[], float] = now_s,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(
                f"the KV pool needs at least 1 block of 1 token, got {num_blocks} blocks of {block_size}; "
                "raise kv.pool_bytes or kv.num_blocks"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self._pool = BlockPool(num_blocks)
        self.block_states = self._pool.states
        """A `BlockState` for each block."""
        self._index = PrefixIndex(num_blocks, block_size, clock_s)
        self._keyed = KeyedPool(self._pool, self._index, block_size, is_on=prefix_cache)
        self._tables: dict[RequestId, BlockTable] = {}
        self.lookups = PrefixLookups(self._index, block_size, prefix_cache)

    @property
    def capacity_tokens(self) -> int:
        """Positions that the whole pool holds."""
        return self.num_blocks * self.block_size

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self._pool.num_free

    @property
    def cached_blocks(self) -> int:
        """Blocks that nobody holds but a prefix hit can still use; evicted when space is needed."""
        return self._pool.num_cached

    @property
    def held_blocks(self) -> int:
        """Blocks in at least one table."""
        return self.num_blocks - self._pool.num_available

    @property
    def available_blocks(self) -> int:
        """Blocks that `reserve` can hand out: free and cached."""
        return self._pool.num_available

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def is_open(self, request_id: RequestId) -> bool:
        """Whether the sequence has a table."""
        return request_id in self._tables

    def table(self, request_id: RequestId) -> tuple[BlockId, ...]:
        """The blocks of a sequence, in position order."""
        return tuple(self._table(request_id).blocks)

    def num_blocks_of(self, request_id: RequestId) -> int:
        """Length of its table."""
        return len(self._table(request_id).blocks)

    def probe(self, tokens: Sequence[int], chain: KeyChain, max_cached: int | None = None) -> tuple[int, int]:
        """What `open` would find, without changing anything.

        Returns:
            (cached tokens, how many of their blocks nobody holds now: taking them uses up available blocks).
        """
        found = self._keyed.find(tokens, chain, max_cached)
        return len(found) * self.block_size, sum(self._pool.refs[block] == 0 for block in found)

    def open(
        self,
        request_id: RequestId,
        tokens: Sequence[int],
        chain: KeyChain,
        *,
        max_cached: int | None = None,
        counted: bool = True,
    ) -> int:
        """Start a table with the longest cached prefix; at least one token is left to compute.

        Args:
            request_id: the sequence.
            tokens: all its tokens.
            chain: its keys; extended here.
            max_cached: take at most this many cached tokens (0: none); None takes all.
            counted: count this lookup in the statistics (the return of a preempted sequence is not).

        Returns:
            Number of cached tokens, a multiple of the block size.

        Raises:
            InvariantError: the sequence has a table already.
        """
        if request_id in self._tables:
            raise InvariantError(f"request {request_id!r} already has a block table")
        found = self._keyed.find(tokens, chain, max_cached)
        for block in found:
            self._pool.share(block)
        self._tables[request_id] = BlockTable(blocks=found, chain=chain, num_published=len(found))
        if counted:
            self.lookups.count(tokens, chain, len(found), max_cached)
        return len(found) * self.block_size

    def fork(self, parent: RequestId, child: RequestId, chain: KeyChain, num_tokens: int) -> None:
        """Give `child` a table that shares the parent's blocks of the first `num_tokens` positions.

        A shared block is copied by `reserve` before anybody writes to it.

        Raises:
            InvariantError: the child has a table, or the parent's is shorter.
        """
        source = self._table(parent)
        count = self.blocks_for(num_tokens)
        if child in self._tables:
            raise InvariantError(f"request {child!r} already has a block table")
        if count > len(source.blocks):
            raise InvariantError(f"request {parent!r} has {len(source.blocks)} blocks, fork needs {count}")
        shared = source.blocks[:count]
        for block in shared:
            self._pool.share(block)
        published = min(source.num_published, num_tokens // self.block_size)
        chain.adopt(source.chain, published)
        self._tables[child] = BlockTable(blocks=shared, chain=chain, num_published=published)

    def reserve(self, request_id: RequestId, start: int, end: int) -> Grant | None:
        """Make positions [start, end) writable by this sequence alone.

        Returns:
            What changed, or None (and nothing changes) when the pool cannot give the blocks.

        Raises:
            InvariantError: the range is empty, leaves a gap, or would overwrite what the sequence published.
        """
        table, size, refs = self._table(request_id), self.block_size, self._pool.refs
        blocks = table.blocks
        first, last = start // size, -(-end // size)
        if first > len(blocks) or end <= start or start < table.num_published * size:
            raise InvariantError(f"cannot reserve [{start}, {end}) of {request_id!r}: {len(blocks)} blocks")
        if last <= len(blocks) and first + 1 == last and refs[blocks[first]] == 1:
            if self._pool.keys[blocks[first]] is not None:
                self._keyed.withdraw(blocks[first:last])
            return NOTHING_TO_DO  # one more token in a block of one's own: the usual case
        shared = [i for i in range(first, min(last, len(blocks))) if refs[blocks[i]] > 1]
        fresh = max(0, last - len(blocks))
        if fresh + len(shared) > self._pool.num_available:
            return None
        self._keyed.withdraw(blocks[first:last])
        if not shared and not fresh:
            return NOTHING_TO_DO
        moves = self._keyed.unshare(table, shared)
        new_blocks = tuple(self._keyed.take() for _ in range(fresh))
        blocks.extend(new_blocks)
        return Grant(new_blocks=new_blocks, swapped=tuple((i, blocks[i]) for i in shared), moves=moves)

    def publish(self, request_id: RequestId, tokens: Sequence[int], num_valid: int) -> None:
        """Make full blocks findable.

        Args:
            request_id: the sequence.
            tokens: its accepted tokens, at least `num_valid`.
            num_valid: leading positions whose KV is computed and belongs to accepted tokens.
        """
        table = self._table(request_id)
        full = num_valid // self.block_size
        if full <= table.num_published or not self.prefix_cache:
            return
        if num_valid > len(tokens) or full > len(table.blocks):
            raise InvariantError(
                f"cannot publish {num_valid} positions of {request_id!r}: {len(tokens)} accepted tokens, "
                f"{len(table.blocks)} blocks"
            )
        self._keyed.publish(table, tokens, full)

    def close(self, request_id: RequestId) -> bool:
        """Release all blocks, the last first: so eviction eats a prefix from its end. False: it has none."""
        table = self._tables.pop(request_id, None)
        if table is None:
            return False
        for block in reversed(table.blocks):
            self._pool.drop(block)
        return True

    def prefix_stats(self) -> PrefixStats:
        """Lookups of new requests since start: how much was found, and why not more."""
        return self.lookups.stats(self._index.num_evictions)

    def check_writable(self, request_id: RequestId, start: int, end: int) -> None:
        """Raise InvariantError when others hold, or a hit can find, a block of positions [start, end)."""
        blocks, size = self._table(request_id).blocks, self.block_size
        for i in range(start // size, -(-end // size)):
            if i >= len(blocks):
                raise InvariantError(f"{request_id!r} writes position {i * size} without a block")
            if self._pool.refs[blocks[i]] != 1 or self._pool.keys[blocks[i]] is not None:
                raise InvariantError(f"{request_id!r} writes block {blocks[i]}, which is shared or published")

    def check(self) -> None:
        """Verify every invariant; raises InvariantError. Cost: linear in blocks and tables."""
        check_books(self._pool, self._index, self._tables.values())

    def _table(self, request_id: RequestId) -> BlockTable:
        try:
            return self._tables[request_id]
        except KeyError:
            raise InvariantError(f"request {request_id!r} has no block table") from None
