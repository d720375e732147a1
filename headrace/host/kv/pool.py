"""References and free blocks of the pool.

A block is in exactly one state: held (references > 0), cached (no reference, but a key under which it can be
found) or free (neither). Taking a block uses a free one, else evicts the cached block that was released
longest ago.
"""

from collections import OrderedDict

from headrace.base.errors import InvariantError
from headrace.base.ids import BlockId, BlockKey
from headrace.base.messages import BlockState


class BlockPool:
    """States of `num_blocks` blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.keys: list[BlockKey | None] = [None] * num_blocks
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]
        self._cached: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks with neither reference nor key."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without a reference that a prefix hit can still find."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give."""
        return len(self._free) + len(self._cached)

    def take(self) -> tuple[BlockId, BlockKey | None]:
        """A block with one reference, and the key it lost by eviction.

        Raises:
            InvariantError: no block is available; callers ask `num_available` first.
        """
        evicted: BlockKey | None = None
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            evicted, self.keys[block] = self.keys[block], None
        else:
            raise InvariantError(f"took a block from a pool with none left ({self.num_blocks} blocks held)")
        self.refs[block] = 1
        return block, evicted

    def share(self, block: BlockId) -> None:
        """One more table holds the block (it may have been cached)."""
        if self.refs[block] == 0:
            if block not in self._cached:
                raise InvariantError(f"block {block} is free and cannot be shared")
            del self._cached[block]
        self.refs[block] += 1

    def drop(self, block: BlockId) -> None:
        """One table less holds the block; the last one makes it cached or free."""
        refs = self.refs[block]
        if refs <= 0:
            raise InvariantError(f"block {block} was released more often than it was held")
        self.refs[block] = refs - 1
        if refs == 1:
            if self.keys[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def states(self) -> bytes:
        """A `BlockState` for each block; linear in blocks."""
        held, shared, cached, free = BlockState.HELD, BlockState.SHARED, BlockState.CACHED, BlockState.FREE
        return bytes(
            (held if refs == 1 else shared) if refs else (free if key is None else cached)
            for refs, key in zip(self.refs, self.keys, strict=True)
        )

    def check(self) -> None:
        """Every block is in exactly one state.

        Raises:
            InvariantError: names the first block that is not.
        """
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free):
            raise InvariantError("a block is twice in the free list")
        for i in range(self.num_blocks):
            block = BlockId(i)
            want_cached = self.refs[i] == 0 and self.keys[i] is not None
            want_free = self.refs[i] == 0 and self.keys[i] is None
            if self.refs[i] < 0 or (block in free) != want_free or (block in cached) != want_cached:
                raise InvariantError(
                    f"block {i}: {self.refs[i]} references, key {self.keys[i] is not None}, "
                    f"in free list {block in free}, in cached list {block in cached}"
                )
