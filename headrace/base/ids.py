"""Names for integers and strings that must not be mixed up."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""One sequence of the engine; the choices of one API request are `ID`, `ID.1`, `ID.2` and so on. Before it
stands whose it is (`engine_id`)."""
SlotId = NewType("SlotId", int)
"""A device row: an index into the per-slot arrays of the runner."""
BlockId = NewType("BlockId", int)
"""A block of KV memory."""
BlockKey = NewType("BlockKey", bytes)
"""Content address of a full block: covers its parent, its tokens and its domain."""
AdapterId = NewType("AdapterId", str)
"""Content identity of a LoRA adapter (not its name)."""

_OWNER_END = "\x1f"
"""Stands in no name that a caller can give."""


def engine_id(tenant: str, name: str) -> RequestId:
    """What the engine calls a request: tenants may give the same names, and none learns of another's.

    Args:
        tenant: name of its tenant; empty where there are no tenants.
        name: what the request is called outside, without control characters.
    """
    return RequestId(f"{tenant}{_OWNER_END}{name}" if tenant else name)


def outer_id(request_id: RequestId | str) -> str:
    """What its own tenant calls a request of the engine."""
    return request_id.rpartition(_OWNER_END)[2]
