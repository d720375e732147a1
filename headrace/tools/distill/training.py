"""What trainers share. Imports torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

DECAY = 0.8
"""What each further draft counts, over the one before."""

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


def set_threads(count: int) -> None:
    """Train with so many threads."""
    torch.set_num_threads(count)


def tensor(values: NDArray[Any]) -> torch.Tensor:
    """An array as a tensor that shares its memory."""
    return torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]


def cosine(share: float) -> float:
    """1 falling to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
