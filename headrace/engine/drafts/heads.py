"""What must be known of heads to resolve settings; no weight is read."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from headrace.compute.spec.heads.eagle import NUM_FUSED, open_eagle
from headrace.compute.spec.heads.medusa import open_medusa
from headrace.engine.drafts.wish import offered
from headrace.engine.resolve import HeadFacts, ModelFacts
from headrace.engine.sizing import HeadPasses

MEDUSA, EAGLE = "medusa", "eagle"


def head_facts(asked: str, target: ModelFacts) -> HeadFacts | None:
    """Sizes of the heads that the setting names, in the words for draft models; None: it names none.

    Raises:
        ConfigError: the setting has another form.
        CheckpointError: the folder holds no heads.
    """
    wish = offered(asked)
    if wish.method not in (MEDUSA, EAGLE):
        return None
    path, vocab = Path(wish.source), target.vocab_size
    shape: dict[str, int] = {"layers": 0, "kv_heads": 1, "mlp_width": 2 * target.width}
    zeros = 0, 0
    if wish.method == MEDUSA:
        files, count, blocks = open_medusa(path)
        zeros = files.size(blocks)  # each gets a matrix of zeros beside it
        passes = HeadPasses(programs=count, states=0)
        known = files.config.integer("truncated_vocab_size", 1, vocab, vocab)
    else:
        files, layer, is_fused = open_eagle(path)
        attention = layer.attention
        shape = {"layers": 1, "kv_heads": attention.kv_heads, "mlp_width": layer.mlp_width}
        shape["head_size"] = attention.head_size
        passes = HeadPasses(programs=2, states=NUM_FUSED if is_fused else 1)
        known = files.config.integer("draft_vocab_size", 1, vocab, vocab) if is_fused else vocab
    facts: dict[str, Any] = {each.name: getattr(target, each.name) for each in fields(target)} | shape
    facts |= {"name": path.name, "vocab_size": known, "draft": None}
    facts["description"] = f"{wish.method} heads, {files.num_parameters / 1e6:.1f} M parameters"
    facts["stored_bytes"] = files.stored_bytes + zeros[0]
    facts["parameters"] = files.num_parameters + zeros[1]
    return HeadFacts(**facts, passes=passes)
