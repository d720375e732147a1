"""The books of the pool, added up from scratch."""

from collections.abc import Iterable

from headrace.base.errors import InvariantError
from headrace.host.kv.pool import BlockPool
from headrace.host.kv.prefix import PrefixIndex
from headrace.host.kv.table import BlockTable


def check_books(pool: BlockPool, index: PrefixIndex, tables: Iterable[BlockTable]) -> None:
    """References match tables, every block has one state, index and keys agree. Cost: linear in blocks.

    Raises:
        InvariantError: names what does not add up.
    """
    held = [0] * pool.num_blocks
    for table in tables:
        for block in table.blocks:
            held[block] += 1
        if table.num_published > min(len(table.blocks), len(table.chain.keys)):
            raise InvariantError("a table claims more published blocks than it has keys or blocks")
    for block, count in enumerate(held):
        if pool.refs[block] != count:
            raise InvariantError(f"block {block} has {pool.refs[block]} references, {count} tables hold it")
    pool.check()
    for key, block in index.block_by_key.items():
        if pool.keys[block] != key:
            raise InvariantError(f"the index finds block {block} under a key it no longer has")
    if sum(key is not None for key in pool.keys) != len(index.block_by_key):
        raise InvariantError("a block has a key that the index does not know")
