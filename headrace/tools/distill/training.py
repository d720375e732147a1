"""What trainers share. Imports torch."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.base.clock import now_s
from headrace.base.errors import ConfigError, HeadraceError
from headrace.compute.ops.api import I32
from headrace.tools.distill.states import Known

DECAY = 0.8
"""What each further draft counts, over the one before."""
RATE = 1e-3
"""Learning rate at its highest."""
BETAS = 0.9, 0.95

Logits = Callable[[Known, int, int], torch.Tensor]
"""Logits [depth, last - first, N] of the places from `first` to before `last` of a text."""
UNKNOWN = 1 << 30
"""The rank of tokens that heads do not know."""
RIDGE = 0.03
"""What holds a linear map small, of the mean square of what it maps."""
MAX_FIT = 60_000
"""Places that a linear map is made from."""
WARM = 0.03
"""Share of a training in which the learning rate rises."""
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
    start: Mapping[str, NDArray[Any]] | None = None
    """The tensors of heads to go on from, float32; None: begin anew."""


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


def rate(share: float) -> float:
    """The learning rate at this share of a training: up to 1 in the beginning, to 0 along half a cosine."""
    return min(1.0, (share + 1e-3) / WARM) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def descend(
    parameters: Sequence[torch.Tensor],
    losses: Callable[[float], Iterable[torch.Tensor]],
    training: Training,
    progress: ProgressFn,
    max_norm: float | None = None,
) -> int:
    """Train parameters until the time is over, which begins with the first step, or the steps are done.

    Args:
        parameters: what changes.
        losses: the losses of a step, which add up, at this share of the training; the graph of one is freed
            before the next is asked for.
        training: how long.
        progress: called after each step.
        max_norm: longer gradients are cut to it.

    Returns:
        The number of steps.

    Raises:
        HeadraceError: a loss is not finite.
    """
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=BETAS, weight_decay=0.0)
    began_s, step, share = now_s(), 0, 0.0
    while share < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate(share)
        optimizer.zero_grad()
        value = 0.0
        for loss in losses(share):
            value += finite_loss(loss, step)
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        step += 1
        share = (now_s() - began_s) / training.seconds if training.steps is None else step / training.steps
        progress(min(share, 1.0), value)
    return step


class Shuffled:
    """Hands out indices below `count`, each once before any comes again."""

    def __init__(self, count: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._count = count
        self._left = np.empty(0, np.int64)

    def take(self, size: int) -> NDArray[np.int64]:
        """The next `size` of them, or all where there are fewer; no two are the same."""
        size = min(size, self._count)
        rest = self._left[:size]
        if len(rest) == size:
            self._left = self._left[size:]
            return rest
        again = self._rng.permutation(self._count)
        new = np.flatnonzero(~np.isin(again, rest))[: size - len(rest)]  # none comes twice in one step
        self._left = np.delete(again, new)
        return np.concatenate([rest, again[new]])


def ridge(x: torch.Tensor, y: torch.Tensor, share: float) -> torch.Tensor:
    """M [a, b] with x M near y, for x [N, a], y [N, b]; `share` of the mean square of x holds M small.

    Not finite where x or y are not.
    """
    gram = x.T @ x
    gram.diagonal().add_(share * float(gram.diagonal().mean()))
    found = torch.linalg.solve_ex(gram, x.T @ y)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast("torch.Tensor", found[0])


def taken_over(
    start: Mapping[str, NDArray[Any]], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors of heads to go on from, as those of a trainer.

    Raises:
        ConfigError: they have other names or shapes.
    """
    for name, values in like.items():
        found = start[name].shape if name in start else None
        if found != tuple(values.shape):
            raise ConfigError(
                f"the heads to go on from have {name!r} of shape {found and list(found)}, these need "
                f"{list(values.shape)}; take the --depth and the model that they were trained with, or leave "
                f"--resume out",
                param="resume",
            )
    return {name: tensor(np.array(start[name], np.float32)).requires_grad_() for name in like}


def ranks_of(texts: Sequence[Known], depth: int, tokens: I32, logits: Logits) -> NDArray[np.int64]:
    """Ranks [depth, places] that heads give to the tokens of texts: 0 is the likeliest.

    The tokens before it on its way are right ones. `UNKNOWN` where a token is not among `tokens` [N].
    """
    found: list[NDArray[np.int64]] = [np.empty((depth, 0), np.int64)]
    with torch.no_grad():
        for text in texts:
            first, last = max(0, text.num_prompt - 2), len(text.ids) - 1 - depth
            if last <= first:
                continue
            wanted = np.stack([text.ids[first + 2 + k : last + 2 + k] for k in range(depth)])
            columns = np.minimum(np.searchsorted(tokens, wanted), len(tokens) - 1)
            said = logits(text, first, last)
            own = said.gather(-1, tensor(columns)[..., None])
            ranks = (said > own).sum(-1).numpy()
            found.append(np.where(tokens[columns] == wanted, ranks, UNKNOWN))
    return np.concatenate(found, axis=1)
