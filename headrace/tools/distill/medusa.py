"""Trains Medusa heads (`compute/spec/heads/medusa`) on the target's states.

Head k sees the state at token i and learns the target's distribution of token i + 2 + k: what the target's
head makes of its state at i + 1 + k. The target itself does not change. Heads know the tokens that its text
uses most, so they are small; they begin as the target's head behind a block that does nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import silu

from headrace.base.clock import now_s
from headrace.compute.ops.api import F32, I32
from headrace.tools.distill.folder import bfloat16
from headrace.tools.distill.states import Known
from headrace.tools.distill.training import (
    DECAY,
    ProgressFn,
    Training,
    acceptance_by_depth,
    cosine,
    finite_loss,
    tensor,
)

BATCH = 256
"""States of a step."""
RATE = 2e-3
"""Learning rate in the beginning; it falls to nothing along half a cosine."""


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

    def train(self, texts: Sequence[Known], progress: ProgressFn) -> int:
        """Train on texts; returns the number of steps.

        The time begins with the first step.
        """
        states, places = _joined(texts, self._training.heads)
        parameters = [self._blocks, self._biases, self._heads]
        optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
        generator = torch.Generator().manual_seed(self._training.seed)
        began_s, step, share = now_s(), 0, 0.0
        while share < 1.0:
            chosen = places[torch.randint(len(places), (BATCH,), generator=generator)]
            for group in optimizer.param_groups:
                group["lr"] = RATE * cosine(share)
            loss = self._loss(states, chosen)
            value = finite_loss(loss, step)
            optimizer.zero_grad()
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            optimizer.step()  # pyright: ignore[reportUnknownMemberType]
            step += 1
            most = self._training.steps
            share = (now_s() - began_s) / self._training.seconds if most is None else step / most
            progress(min(share, 1.0), value)
        return step

    def _loss(self, states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        logits = self._logits(states[places].float())
        with torch.no_grad():
            later = states[places + 1 + torch.arange(self._training.heads)[:, None]].float()
            wanted = torch.softmax(later @ self._target.T, -1)
        losses = -(wanted * torch.log_softmax(logits, -1)).sum(-1).mean(-1)
        return (losses * DECAY ** torch.arange(len(losses))).sum()

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """[heads, B, N] from states [B, width]."""
        blocks = torch.baddbmm(self._biases[:, None], x.expand(len(self._blocks), -1, -1), self._blocks.mT)
        return (x + silu(blocks)) @ self._heads.mT

    def acceptance(self, texts: Sequence[Known]) -> list[float]:
        """For each depth, the share of places of greedy texts where all heads up to it are right."""
        return acceptance_by_depth(texts, self._training.heads, self._guesses)

    def _guesses(self, text: Known, first: int, last: int) -> NDArray[Any]:
        return self._tokens[self._logits(tensor(text.states[0][first:last]).float()).argmax(-1).numpy()]

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
        for k in range(self._training.heads):
            found[f"blocks.{k}.layers.0.weight"] = bfloat16(self._blocks[k].detach().numpy())
            found[f"blocks.{k}.layers.0.bias"] = self._biases[k].detach().numpy()
            found[f"lm_heads.{k}.weight"] = bfloat16(self._heads[k].detach().numpy())
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
