"""How much memory the KV pool gets; the one place that turns bytes into blocks.

Bytes of a block come from `KVGeometry.block_bytes`, which the pool allocates by, so that plan, admission and
report cannot disagree.
"""

from dataclasses import dataclass, replace

from headrace.base.config import KVConfig
from headrace.base.errors import ConfigError
from headrace.compute.ops.api import KVGeometry, StepLimits

WORKING_BYTES = 384 << 20
"""Left for the interpreters, activations and buffers, at least."""
PROCESS_BYTES = 224 << 20
"""Of that, both processes without a model; 160 MiB were measured."""
SHARE = 0.85
"""Share of the rest of the memory that the pool may take when it is sized automatically."""
MAX_AUTO_BYTES = 4 << 30
MAX_BLOCKS = 1 << 24


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Blocks of the pool, and why that many."""

    num_blocks: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What the memory of a step depends on: the largest step, and the model's widths."""

    tokens: int
    logits: int
    slots: int
    length: int
    width: int
    mlp_width: int
    vocab_size: int

    @property
    def working_bytes(self) -> int:
        """Memory besides weights and pool: processes, activations in float32 and 8 bits, logits, slots.

        Values whose lives do not meet share memory: four widths and three and a half MLP widths per
        token suffice for a program. There are two: hidden states for embeddings have their own.
        """
        return max(WORKING_BYTES, PROCESS_BYTES + self.step_bytes)

    @property
    def step_bytes(self) -> int:
        """Memory of the largest step by itself: activations, logits, slots."""
        activations = 2 * self._program_bytes
        logits = 8 * self.logits * self.vocab_size
        slots = 8 * self.slots * self.length
        return activations + logits + slots

    @property
    def activation_bytes(self) -> int:
        """Activations and slots: what common steps touch of a step's memory."""
        return self._program_bytes + 8 * self.slots * self.length

    @property
    def _program_bytes(self) -> int:
        """Values of one program; that of hidden states is touched by embeddings only."""
        return 4 * self.tokens * (4 * self.width + 7 * self.mlp_width // 2)


KEPT_COPIES = 3
"""Of states that the target keeps of a token: its own, one that waits for the heads, one joined to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPasses:
    """How trained heads compute."""

    programs: int
    """Each has memory of its own."""
    states: int
    """States of each token of a step that the target keeps for them; 0: those of the wanted rows only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Memory of what drafts for a model."""

    block_bytes: int = 0
    """Of what is kept per block."""
    weight_bytes: int = 0
    step_bytes: int = 0

    @classmethod
    def of(
        cls, weight_bytes: int, geometry: KVGeometry, limits: StepLimits, widths: tuple[int, int, int]
    ) -> "Beside":
        """The memory of a draft model.

        Args:
            weight_bytes: of its weights.
            geometry: shape of its keys and values.
            limits: its largest pass.
            widths: its width, that of its widest MLP, and its vocabulary.
        """
        width, mlp_width, vocab_size = widths
        step = StepShape(
            tokens=limits.max_tokens,
            logits=limits.max_logits,
            slots=0,
            length=0,
            width=width,
            mlp_width=mlp_width,
            vocab_size=vocab_size,
        )
        return cls(block_bytes=geometry.block_bytes, weight_bytes=weight_bytes, step_bytes=step.step_bytes)

    @classmethod
    def of_heads(
        cls,
        facts: "Beside",
        limits: StepLimits,
        widths: tuple[int, int, int],
        passes: HeadPasses,
        step: StepShape,
    ) -> "Beside":
        """The memory of heads.

        Args:
            facts: of their weights, and per block.
            limits: of a pass over tokens; without `passes.states` they see one state of each row.
            widths: their width, that of their MLP, and their vocabulary.
            passes: how they compute.
            step: the target's largest step.
        """
        width, mlp_width, vocab_size = widths
        tokens = limits.max_tokens if passes.states else limits.max_rows
        values = tokens * (4 * width + 7 * mlp_width // 2)
        logits = limits.max_logits * vocab_size
        kept = KEPT_COPIES * passes.states * step.tokens * width or (step.logits + step.slots) * width
        drawn = limits.max_logits * step.vocab_size
        step_bytes = 4 * (passes.programs * (values + logits) + kept + drawn)
        return replace(facts, step_bytes=step_bytes)


NOTHING_BESIDE = Beside()


def plan_pool(
    kv: KVConfig,
    geometry: KVGeometry,
    weight_bytes: int,
    memory_bytes: int,
    step: StepShape,
    beside: Beside = NOTHING_BESIDE,
) -> PoolPlan:
    """Size the pool.

    Args:
        kv: settings; `num_blocks` wins over `pool_bytes` wins over auto.
        geometry: shape of the KV.
        weight_bytes: memory of the weights.
        memory_bytes: what the process may use.
        step: the largest step; all its slots with full contexts are the most that can ever be used.
        beside: what drafts.

    Raises:
        ConfigError: it does not fit; the message says who needs what.
    """
    block_bytes = geometry.block_bytes + beside.block_bytes
    working = step.working_bytes + beside.step_bytes
    weight_bytes += beside.weight_bytes
    who = "the model, its draft model" if beside.weight_bytes else "the model"
    remedy = ", or speculate without a draft model" if beside.weight_bytes else ""
    room = memory_bytes - weight_bytes - working
    is_auto = kv.num_blocks is None and kv.pool_bytes is None
    needed = weight_bytes + working + (2 if is_auto else 1) * block_bytes
    if memory_bytes < needed:
        raise ConfigError(
            f"{who} and the least KV pool need {-(-needed >> 20)} MiB, the process has "
            f"{memory_bytes >> 20} MiB; weights {weight_bytes}, working memory {working}: give the process "
            f"{needed} bytes or more, take a smaller model, or lower schedule.max_num_batched_tokens and "
            f"schedule.max_num_seqs{remedy}",
            param="kv.pool_bytes",
        )
    if kv.num_blocks is not None:
        plan = PoolPlan(kv.num_blocks, "asked for in blocks")
    elif kv.pool_bytes is not None:
        plan = PoolPlan(kv.pool_bytes // block_bytes, "asked for in bytes")
    else:
        plan = _auto_plan(room, block_bytes, -(-step.slots * step.length // geometry.block_size))
    if not 1 <= plan.num_blocks <= MAX_BLOCKS:
        raise ConfigError(
            f"the KV pool would have {plan.num_blocks} blocks ({plan.reason}), it needs 1 to {MAX_BLOCKS} of "
            f"{block_bytes} bytes",
            param="kv.pool_bytes",
        )
    if plan.num_blocks * block_bytes > room:
        raise ConfigError(
            f"the KV pool asks for {plan.num_blocks * block_bytes} bytes; of {memory_bytes} bytes the "
            f"weights take {weight_bytes}, working memory {working}, so at most {room} bytes "
            f"({room // block_bytes} blocks) fit",
            param="kv.pool_bytes",
        )
    return plan


def _auto_plan(room: int, block_bytes: int, most: int) -> PoolPlan:
    """As many blocks as are of use, within a share of the `room` bytes that are left."""
    fitting = int(min(room * SHARE, MAX_AUTO_BYTES)) // block_bytes
    reason = "every sequence can have a full context" if most <= fitting else "the memory that is left"
    if fitting < most and room * SHARE > MAX_AUTO_BYTES:
        reason = f"automatic sizes stop at {MAX_AUTO_BYTES >> 30} GiB"
    return PoolPlan(min(most, fitting), reason)
