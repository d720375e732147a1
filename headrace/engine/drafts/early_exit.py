"""Early exit: whether a model can draft with its own first layers."""

from headrace.base.config import EngineConfig
from headrace.base.errors import ConfigError
from headrace.base.specs import ModelSpec
from headrace.base.tasks import EARLY_EXIT, Speculation
from headrace.engine.drafts.draft_model import refuse_measuring
from headrace.engine.drafts.wish import PARAM, offered


def check_exit(config: EngineConfig, spec: ModelSpec) -> None:
    """Refuse a number of layers that the model lacks.

    Raises:
        ConfigError: no number from 1 to the model's layers, or angles that depend on the length of a prompt,
            of which drafting knows nothing.
    """
    wish = offered(config.speculate.method)
    if wish.method != EARLY_EXIT:
        return
    text, most = wish.source, len(spec.layers)
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most):
        raise ConfigError(
            f"{PARAM}: {EARLY_EXIT}=N drafts with the first N layers of the model, 1 to {most}, "
            f"got {text!r:.80}",
            param=PARAM,
        )
    refuse_measuring(spec, "the model", "early exit does not draft for it, take auto, ngram or suffix")


def about_exit(found: Speculation, num_layers: int) -> str:
    """What the table of settings says besides of an early exit; empty: there is none."""
    if found.method != EARLY_EXIT:
        return ""
    told = f"; the first {found.source} of {num_layers} layers draft, with the model's own weights and KV"
    if found.source == str(num_layers):
        return f"{told}; warning: not fewer than all, so drafting with them cannot pay"
    return told
