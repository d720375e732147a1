"""A draft model: found and opened; no weight is read."""

from headrace.base.config import EngineConfig
from headrace.base.errors import ConfigError
from headrace.compute.weights.catalogue import locate
from headrace.compute.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.engine.drafts.wish import PARAM, offered

DRAFT = "draft"
MEASURING = frozenset({"dynamic", "longrope"})
"""Kinds of rotary embeddings whose angles depend on the length of the prompt."""


def open_draft(config: EngineConfig) -> Checkpoint | None:
    """The checkpoint of the draft model that the settings name; None: they name none.

    Raises:
        ConfigError: its angles depend on the length of a prompt, of which drafting knows nothing.
        NotFoundError: no such model.
        DownloadError: it could not be fetched.
        CheckpointError: broken, or asking for something Headrace lacks.
    """
    wish = offered(config.speculate.method)
    if wish.method != DRAFT:
        return None
    checkpoint = open_checkpoint(locate(wish.source))
    kinds = {layer.attention.rope.kind for layer in checkpoint.spec.layers} & MEASURING
    if kinds:
        raise ConfigError(
            f"{PARAM}: draft model {wish.source!r} has rotary embeddings of kind "
            f"{', '.join(sorted(kinds))}, which depend on the length of the prompt; give another draft model",
            param=PARAM,
        )
    return checkpoint
