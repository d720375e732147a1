"""Names for integers and strings that must not be mixed up."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""One sequence of the engine; the choices of one API request are `ID`, `ID.1`, `ID.2` and so on."""
SlotId = NewType("SlotId", int)
"""A device row: an index into the per-slot arrays of the runner."""
BlockId = NewType("BlockId", int)
"""A block of KV memory."""
BlockKey = NewType("BlockKey", bytes)
"""Content address of a full block: covers its parent, its tokens and its domain."""
AdapterId = NewType("AdapterId", str)
"""Content identity of a LoRA adapter (not its name)."""
