"""From what was read of a target to a trainer. Imports torch."""

from collections.abc import Callable, Sequence

import numpy as np

from headrace.compute.ops.api import I32
from headrace.tools.distill.eagle import EagleTrainer
from headrace.tools.distill.medusa import MedusaTrainer
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.states import Known, Reader
from headrace.tools.distill.training import Training, set_threads

__all__ = ["make_eagle", "make_medusa", "set_threads"]


def make_medusa(
    reader: Reader, tokens: I32, texts: Sequence[Known], plan: Plan
) -> Callable[[float], MedusaTrainer]:
    """What makes a trainer that trains for so many seconds; `reader` is not needed any more then."""
    del texts
    head = reader.head_rows(tokens)
    return lambda seconds: MedusaTrainer(tokens, head, _training(plan, seconds))


def make_eagle(
    reader: Reader, tokens: I32, texts: Sequence[Known], plan: Plan
) -> Callable[[float], EagleTrainer]:
    """The same for EAGLE-3."""
    head = reader.head_rows(tokens)
    ids = np.unique(np.concatenate([text.ids for text in texts])).astype(np.int32)
    embed = ids, reader.embed_rows(ids)
    layers = reader.taps.inputs_of
    return lambda seconds: EagleTrainer(tokens, head, embed, layers, _training(plan, seconds))


def _training(plan: Plan, seconds: float) -> Training:
    return Training(heads=plan.heads, seconds=seconds, steps=plan.steps, seed=plan.seed)
