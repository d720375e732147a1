"""Puts the proposers of an engine together."""

from dataclasses import dataclass

from headrace.base.tasks import AUTO, Speculation
from headrace.compute.models.load import LoadedModel
from headrace.compute.ops.api import Backend, KVPool
from headrace.compute.runner.state import DeviceState
from headrace.compute.spec.drafting import Drafting
from headrace.compute.spec.kit import DraftKit, draft_limits
from headrace.compute.spec.proposer import DRAFTERS, PROPOSERS, Proposer


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What drafts are made for, and what drafters may use of it."""

    model: LoadedModel
    backend: Backend
    pool: KVPool
    state: DeviceState


def make_drafting(
    offered: Speculation, target: Drafted, draft: LoadedModel | None = None, memory_tokens: int = 0
) -> Drafting | None:
    """The proposers that these settings ask for.

    Args:
        offered: the setting.
        target: what is drafted for.
        draft: the draft model, for the method that has one.
        memory_tokens: tokens of finished answers that may be remembered.
    """
    if not offered.is_on:
        return None
    proposers: dict[str, Proposer] = {}
    if offered.lookup:
        names = PROPOSERS.names() if offered.lookup == AUTO else (offered.lookup,)
        proposers |= {name: PROPOSERS.get(name)() for name in names}
    if not offered.is_late:
        return Drafting(proposers, offered, memory_tokens=memory_tokens)
    slots, width = target.state.tables.shape
    kit = DraftKit(
        backend=target.backend,
        state=target.state,
        target=target.model,
        pool=target.pool,
        limits=draft_limits(width, slots),
        source=offered.source,
        model=draft,
    )
    proposers[offered.method] = DRAFTERS.get(offered.method.replace("-", "_"))(kit)
    return Drafting(proposers, offered, kit.planes, memory_tokens=memory_tokens)
