"""How much memory the KV pool gets; the one place that turns bytes into blocks.

Bytes of a block come from `KVGeometry.block_bytes`, which the pool allocates by, so that plan, admission and
report cannot disagree.
"""

from dataclasses import dataclass

from headrace.base.config import KVConfig
from headrace.base.errors import ConfigError
from headrace.compute.ops.api import KVGeometry

WORKING_BYTES = 384 << 20
"""Left for the interpreter, activations and buffers."""
SHARE = 0.85
"""Share of the rest of the memory that the pool may take when it is sized automatically."""
MAX_AUTO_BYTES = 4 << 30
MAX_BLOCKS = 1 << 24


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Blocks of the pool, and why that many."""

    num_blocks: int
    reason: str


def plan_pool(
    kv: KVConfig, geometry: KVGeometry, weight_bytes: int, memory_bytes: int, most_tokens: int
) -> PoolPlan:
    """Size the pool.

    Args:
        kv: settings; `num_blocks` wins over `pool_bytes` wins over auto.
        geometry: shape of the KV.
        weight_bytes: memory of the weights.
        memory_bytes: what the process may use.
        most_tokens: positions that could ever be used at once.

    Raises:
        ConfigError: it does not fit; the message says who needs what.
    """
    block_bytes = geometry.block_bytes
    room = memory_bytes - weight_bytes - WORKING_BYTES
    if kv.num_blocks is not None:
        plan = PoolPlan(kv.num_blocks, "asked for in blocks")
    elif kv.pool_bytes is not None:
        plan = PoolPlan(kv.pool_bytes // block_bytes, "asked for in bytes")
    else:
        most = -(-most_tokens // geometry.block_size)
        fitting = int(min(room * SHARE, MAX_AUTO_BYTES)) // block_bytes
        reason = "every sequence can have a full context" if most <= fitting else "the memory that is left"
        if fitting < most and room * SHARE > MAX_AUTO_BYTES:
            reason = f"automatic sizes stop at {MAX_AUTO_BYTES >> 30} GiB"
        plan = PoolPlan(min(most, fitting), reason)
    if not 1 <= plan.num_blocks <= MAX_BLOCKS:
        raise ConfigError(
            f"the KV pool would have {plan.num_blocks} blocks ({plan.reason}), it needs 1 to {MAX_BLOCKS} of "
            f"{block_bytes} bytes; memory {memory_bytes}, weights {weight_bytes}, working memory "
            f"{WORKING_BYTES}",
            param="kv.pool_bytes",
        )
    if plan.num_blocks * block_bytes > room:
        raise ConfigError(
            f"the KV pool asks for {plan.num_blocks * block_bytes} bytes; of {memory_bytes} bytes the "
            f"weights take {weight_bytes}, working memory {WORKING_BYTES}, so at most {max(room, 0)} bytes "
            f"({max(room, 0) // block_bytes} blocks) fit",
            param="kv.pool_bytes",
        )
    return plan
