"""A draft model: found and opened; no weight is read."""

from headrace.base.config import EngineConfig
from headrace.base.errors import ConfigError
from headrace.base.specs import ModelSpec
from headrace.compute.weights.catalogue import locate
from headrace.compute.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.engine.drafts.wish import PARAM, offered

DRAFT = "draft"


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
    refuse_measuring(checkpoint.spec, f"draft model {wish.source!r}", "give another draft model")
    return checkpoint


def refuse_measuring(spec: ModelSpec, name: str, remedy: str) -> None:
    """Refuse to draft with a model whose angles depend on the length of a prompt: drafting does not know it.

    Raises:
        ConfigError: it is one.
    """
    ropes = (layer.attention.rope for layer in spec.layers)
    kinds = sorted({rope.kind for rope in ropes if rope.is_measuring})
    if kinds:
        raise ConfigError(
            f"{PARAM}: {name} has rotary embeddings of kind {', '.join(kinds)}, which depend on the length "
            f"of the prompt; {remedy}",
            param=PARAM,
        )
