"""Trains Medusa heads (`compute/spec/heads/medusa`) on the target's states.

Head k sees the state at token i and learns the target's distribution of token i + 2 + k: what the target's
head makes of its state at i + 1 + k. The target itself does not change. Heads know the tokens that its text
uses most, so they are small. Head k begins as the target's behind the best linear map from the state at i to
that at i + 1 + k, and a block that does nothing: the rest is left to gradients.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import silu

from headrace.compute.ops.api import F32, I32
from headrace.tools.distill.folder import bfloat16
from headrace.tools.distill.states import Known
from headrace.tools.distill.training import (
    DECAY,
    MAX_FIT,
    RIDGE,
    ProgressFn,
    Shuffled,
    Training,
    descend,
    ranks_of,
    ridge,
    taken_over,
    tensor,
)

BATCH = 512
"""States of a step."""
LIKELY = 32
"""Tokens of the target's distribution that are learned; SmolLM2's hold 96 % of it."""
PART = 512
"""States whose distributions are computed together."""


class MedusaTrainer:
    """Heads in training.

    Args:
        tokens: the vocabulary of the heads [N].
        head: the target's head for these tokens [N, width].
        training: see there.
    """

    def __init__(self, tokens: I32, head: F32, training: Training) -> None:
        self._tokens = tokens
        self._training = training
        width = head.shape[1]
        self._target = tensor(head)
        self._blocks = torch.zeros(training.heads, width, width, requires_grad=True)
        self._biases = torch.zeros(training.heads, width, requires_grad=True)
        self._heads = self._target.clone().repeat(training.heads, 1, 1).requires_grad_()
        if training.start is not None:
            found = taken_over(training.start, {name: part.detach() for name, part in self._parts()})
            with torch.no_grad():
                for name, part in self._parts():
                    part[:] = found[name]

    def _parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of each head, by the names that they have in files."""
        for k in range(self._training.heads):
            yield f"blocks.{k}.layers.0.weight", self._blocks[k]
            yield f"blocks.{k}.layers.0.bias", self._biases[k]
            yield f"lm_heads.{k}.weight", self._heads[k]

    def train(self, texts: Sequence[Known], progress: ProgressFn) -> int:
        """Train on texts; returns the number of steps."""
        states, places = _joined(texts, self._training.heads)
        with torch.no_grad():
            if self._training.start is None:
                self._fit(states, places)
            wanted = self._wanted(states)
        order = Shuffled(len(places), self._training.seed)

        def losses(_: float) -> Iterator[torch.Tensor]:
            yield self._loss(states, places[tensor(order.take(BATCH))], wanted)

        return descend([self._blocks, self._biases, self._heads], losses, self._training, progress)

    def _loss(
        self, states: torch.Tensor, chosen: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """The loss of all heads at the chosen places; `wanted` as `_wanted` gives it."""
        shares, columns = wanted
        depths = torch.arange(self._training.heads)
        later = 1 + depths[:, None]
        logits = self._logits(states[chosen].float())
        weights = shares[chosen + later]
        said = logits.gather(-1, columns[chosen + later])
        losses = torch.logsumexp(logits, -1) * weights.sum(-1) - (said * weights).sum(-1)
        return (losses.mean(-1) * DECAY**depths).sum()

    def _fit(self, states: torch.Tensor, places: torch.Tensor) -> None:
        """Begin with what is linear: H (x + M x) for the map M from a state to what comes after it."""
        places = places[:MAX_FIT]
        x = states[places].float()
        for k in range(self._training.heads):
            found = ridge(x, states[places + 1 + k].float() - x, RIDGE)
            if found.isfinite().all():  # else the first loss says so
                self._heads[k] += self._target @ found.T

    def _wanted(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's likeliest tokens after each state: probabilities and columns [places, LIKELY].

        Computed once: every head learns them, in every round through the texts.
        """
        count = min(LIKELY, len(self._target))
        shares: list[torch.Tensor] = []
        columns: list[torch.Tensor] = []
        for first in range(0, len(states), PART):
            top = torch.softmax(states[first : first + PART].float() @ self._target.T, -1).topk(count)
            shares.append(top.values)
            columns.append(top.indices)
        return torch.cat(shares), torch.cat(columns)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """[heads, B, N] from states [B, width]."""
        blocks = torch.baddbmm(self._biases[:, None], x.expand(len(self._blocks), -1, -1), self._blocks.mT)
        return (x + silu(blocks)) @ self._heads.mT

    def ranks(self, texts: Sequence[Known]) -> NDArray[np.int64]:
        """See `ranks_of`."""
        return ranks_of(
            texts,
            self._training.heads,
            self._tokens,
            lambda text, first, last: self._logits(tensor(text.states[0][first:last]).float()),
        )

    def config(self, width: int, vocab_size: int) -> dict[str, Any]:
        """`config.json`, in the words that vLLM reads."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": width,
            "vocab_size": vocab_size,
            "truncated_vocab_size": len(self._tokens),
            "num_heads": self._training.heads,
            "num_hidden_layers": 1,
            "medusa_fc_bias": True,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All weights by name."""
        found: dict[str, NDArray[Any]] = {"token_map": self._tokens.astype(np.int64)}
        for name, part in self._parts():
            values = part.detach().numpy()
            found[name] = values if name.endswith("bias") else bfloat16(values)
        return found


def _joined(texts: Sequence[Known], heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All states [N, width] float16, and the places in them that can be learned from."""
    places: list[NDArray[np.int64]] = []
    first = 0
    for text in texts:
        begin, end = max(0, text.num_prompt - 2), len(text.ids) - heads
        places.append(first + np.arange(begin, max(begin, end)))
        first += len(text.ids)
    states = tensor(np.concatenate([text.states[0] for text in texts]))
    return states, tensor(np.concatenate(places))
