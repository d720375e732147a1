"""From what was read of a target to a trainer. Imports torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.specs import ModelSpec
from headrace.compute.models.decoder import Taps
from headrace.compute.ops.api import I32
from headrace.tools.distill.eagle import EagleTrainer
from headrace.tools.distill.medusa import MedusaTrainer
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.states import Known, Reader
from headrace.tools.distill.training import Training, set_threads

__all__ = ["fitted", "make_eagle", "make_medusa", "set_threads"]


Start = Mapping[str, NDArray[Any]] | None


def make_medusa(
    reader: Reader, tokens: I32, texts: Sequence[Known], plan: Plan, start: Start = None
) -> Callable[[float], MedusaTrainer]:
    """What makes a trainer that trains for so many seconds; `reader` is not needed any more then.

    Args:
        reader: gives weights of the target.
        tokens: the vocabulary of the heads, ascending.
        texts: those to train on and to judge by.
        plan: what is asked for.
        start: the tensors of heads to go on from.
    """
    del texts
    head = reader.head_rows(tokens)
    return lambda seconds: MedusaTrainer(tokens, head, _training(plan, seconds, start))


def make_eagle(
    reader: Reader, tokens: I32, texts: Sequence[Known], plan: Plan, start: Start = None
) -> Callable[[float], EagleTrainer]:
    """The same for EAGLE-3."""
    head = reader.head_rows(tokens)
    ids = np.unique(np.concatenate([text.ids for text in texts])).astype(np.int32)
    embed = ids, reader.embed_rows(ids)
    layers = reader.taps.inputs_of
    return lambda seconds: EagleTrainer(tokens, head, embed, layers, _training(plan, seconds, start))


def fitted(target: ModelSpec, taps: Taps, tokens: I32, plan: Plan, start: Start) -> dict[str, Any]:
    """`config.json` of heads that go on from others, which are taken over once to see whether they fit.

    Args:
        target: the model; of its weights nothing is read.
        taps: its states that they learn from.
        tokens: their vocabulary, ascending.
        plan: what is asked for.
        start: their tensors.

    Raises:
        ConfigError: these have other names or shapes.
    """
    training = _training(plan, 1.0, start)
    head = np.zeros((len(tokens), target.width), np.float32)
    if plan.method == "medusa":
        trainer = MedusaTrainer(tokens, head, training)
    else:
        trainer = EagleTrainer(tokens, head, (tokens, head), taps.inputs_of, training)
    return trainer.config(target.width, target.vocab_size)


def _training(plan: Plan, seconds: float, start: Start) -> Training:
    return Training(heads=plan.heads, seconds=seconds, steps=plan.steps, seed=plan.seed, start=start)
