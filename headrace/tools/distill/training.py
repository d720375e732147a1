"""What trainers share. Imports torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.base.errors import HeadraceError
from headrace.tools.distill.states import Known

DECAY = 0.8
"""What each further draft counts, over the one before."""

Guesses = Callable[[Known, int, int], NDArray[Any]]
"""The drafts [depth, last - first] of the places from `first` to before `last` of a text."""
ProgressFn = Callable[[float, float], None]
"""Called with (share of the training that is done, loss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long and how deep."""

    heads: int
    """Drafts of a row."""
    seconds: float
    steps: int | None
    """None: as many as the time allows."""
    seed: int


def finite_loss(loss: torch.Tensor, step: int) -> float:
    """The loss as a number.

    Raises:
        HeadraceError: it is not finite, so nothing can be learned any more.
    """
    value = float(loss.detach())
    if not math.isfinite(value):
        raise HeadraceError(
            f"training broke down: the loss of step {step + 1} is {value}; the model's states or head hold "
            f"NaN or infinite values, or the texts are unlike any that it knows; try other --prompts"
        )
    return value


def set_threads(count: int) -> None:
    """Train with so many threads."""
    torch.set_num_threads(count)


def tensor(values: NDArray[Any]) -> torch.Tensor:
    """An array as a tensor that shares its memory."""
    return torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]


def cosine(share: float) -> float:
    """1 falling to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def acceptance_by_depth(texts: Sequence[Known], depth: int, guesses: Guesses) -> list[float]:
    """For each depth, the share of places of greedy texts where all drafts up to it are right."""
    hits, count = np.zeros(depth), 0
    with torch.no_grad():
        for text in texts:
            first, last = max(0, text.num_prompt - 2), len(text.ids) - 1 - depth
            if last <= first:
                continue
            wanted = [text.ids[first + 2 + k : last + 2 + k] for k in range(depth)]
            right = guesses(text, first, last) == np.stack(wanted)
            hits += np.logical_and.accumulate(right, axis=0).sum(axis=1)
            count += last - first
    return (hits / max(count, 1)).tolist()
