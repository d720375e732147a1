"""What must be known of heads to resolve settings; no weight is read."""

from dataclasses import replace
from pathlib import Path

from headrace.compute.spec.heads.eagle import open_eagle
from headrace.compute.spec.heads.files import HeadFiles
from headrace.engine.drafts.wish import offered
from headrace.engine.resolve import ModelFacts

MEDUSA, EAGLE = "medusa", "eagle"


def head_facts(asked: str, target: ModelFacts) -> ModelFacts | None:
    """Sizes of the heads that the setting names, in the words for draft models; None: it names none.

    Raises:
        ConfigError: the setting has another form.
        CheckpointError: the folder holds no heads.
    """
    wish = offered(asked)
    if wish.method not in (MEDUSA, EAGLE):
        return None
    path, layers, kv_heads, head_size, mlp_width = Path(wish.source), 0, 1, target.head_size, 2 * target.width
    if wish.method == MEDUSA:
        files = HeadFiles(path)
    else:
        files, layer, _ = open_eagle(path)
        attention = layer.attention
        layers, kv_heads, head_size = 1, attention.kv_heads, attention.head_size
        mlp_width = layer.mlp_width
    count = files.num_parameters
    return replace(
        target,
        name=path.name,
        description=f"{wish.method} heads, {count / 1e6:.1f} M parameters",
        layers=layers,
        kv_heads=kv_heads,
        head_size=head_size,
        mlp_width=mlp_width,
        stored_bytes=files.stored_bytes,
        parameters=count,
    )
