"""What a drafter works with."""

from dataclasses import dataclass, field

from headrace.compute.models.load import LoadedModel
from headrace.compute.ops.api import Backend, KVGeometry, KVPool, StepLimits
from headrace.compute.runner.mover import Plane
from headrace.compute.runner.state import DeviceState
from headrace.compute.spec.heads.files import Target

CATCH_UP = 16
"""Tokens that a drafter takes in and drafts in the same step; with more it takes in first."""
INTAKE = 128
"""Tokens that a drafter takes in a step, all rows together, where it does not draft yet."""
MAX_ROWS = 32
"""Rows that draft in a step, as many as there are drafts."""


def draft_limits(table_width: int, max_num_seqs: int) -> StepLimits:
    """The largest pass of a drafter.

    Args:
        table_width: most blocks of a sequence.
        max_num_seqs: slots.
    """
    rows = min(MAX_ROWS, max_num_seqs)
    return StepLimits(
        max_tokens=rows * CATCH_UP + INTAKE, max_rows=rows, max_logits=rows, table_width=table_width
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftKit:
    """Given to a drafter when it is made, before the first step.

    `state` holds tokens, block tables and sampling parameters by slot; drafters read them, and put drafts
    behind the tokens with `state.draft`, where the next pass finds them.
    """

    backend: Backend
    state: DeviceState
    target: LoadedModel
    pool: KVPool
    """The target's KV."""
    limits: StepLimits
    """The largest pass of drafting, for `Backend.compile`."""
    source: str = ""
    """What stands after `=` in the setting."""
    model: LoadedModel | None = None
    """The draft model that `source` names."""
    planes: list[Plane] = field(default_factory=list[Plane])
    """What moves along with the target's blocks; the target's pool is none of them."""

    def shared(self) -> Target:
        """What heads share with the target."""
        target = self.target
        return Target(
            spec=target.spec,
            embed=target.weights.embed,
            head=target.weights.head,
            head_bytes=target.head_bytes,
        )

    def add_plane(self, geometry: KVGeometry) -> KVPool:
        """KV memory with as many blocks as the target's, addressed by the same tables.

        Its bytes must be told to `engine/sizing` (`Beside`), or the memory does not suffice for it. Who keeps
        more than that by block appends to `planes` itself.
        """
        pool = self.backend.kv_pool(geometry, self.pool.num_blocks)
        self.planes.append(pool)
        return pool
