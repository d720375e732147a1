"""Trains EAGLE-3 heads (`compute/spec/heads/eagle`) on the target's states.

One layer sees, at place i, the embedding of token i + 1 and a feature, and learns the target's distribution
of token i + 2. When it drafts, the features of its first place are the target's, later ones its own.
So it is trained as it is used: pass s goes on from what pass s - 1 gave one place before (Li et al. 2025,
arXiv:2503.01840, training-time test).

    pass 1     place i sees places <= i, all with features of the target
    pass s     place i sees places <= i - s + 1 of pass 1, and one of each pass from 2 to s: its own chain
"""

import math
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

HEAD_SIZE = 64
TEXTS = 4
"""Of a step."""
RATE = 1e-3
BASE = 10000.0
EPS = 1e-5


class EagleTrainer:
    """Heads in training. Texts have four states: the inputs of three layers, and those after the last norm.

    Args:
        tokens: the vocabulary of the heads [N].
        head: the target's head for these tokens [N, width].
        embed: the target's embeddings of all tokens that occur: (ids [M] ascending, values [M, width]).
        layers: the layers whose inputs are fused.
        training: see there; `heads` is the number of passes.
    """

    def __init__(
        self, tokens: I32, head: F32, embed: tuple[I32, F32], layers: tuple[int, ...], training: Training
    ) -> None:
        self._tokens, self._layers, self._training = tokens, layers, training
        self._target = tensor(head)
        self._embed_ids, self._embed = embed[0], tensor(embed[1])
        width = head.shape[1]
        self._width, self._heads = width, max(1, width // HEAD_SIZE)
        generator = torch.Generator().manual_seed(training.seed)
        inner = self._heads * HEAD_SIZE

        def draw(n: int, k: int) -> torch.Tensor:
            return (torch.randn(n, k, generator=generator) / math.sqrt(k)).requires_grad_()

        fc = torch.zeros(width, 3 * width)
        fc[:, 2 * width :] = torch.eye(width)
        self._weights: dict[str, torch.Tensor] = {
            "fc.weight": fc.requires_grad_(),
            "midlayer.self_attn.q_proj.weight": draw(inner, 2 * width),
            "midlayer.self_attn.k_proj.weight": draw(inner, 2 * width),
            "midlayer.self_attn.v_proj.weight": draw(inner, 2 * width),
            "midlayer.self_attn.o_proj.weight": torch.zeros(width, inner, requires_grad=True),
            "midlayer.mlp.gate_proj.weight": draw(2 * width, width),
            "midlayer.mlp.up_proj.weight": draw(2 * width, width),
            "midlayer.mlp.down_proj.weight": torch.zeros(width, 2 * width, requires_grad=True),
            "lm_head.weight": self._target.clone().requires_grad_(),
        }
        for name in (
            "midlayer.input_layernorm",
            "midlayer.hidden_norm",
            "midlayer.post_attention_layernorm",
            "norm",
        ):
            self._weights[name + ".weight"] = torch.ones(width, requires_grad=True)

    def train(self, texts: Sequence[Known], progress: ProgressFn) -> int:
        """Train on texts; returns the number of steps. The time begins with the first step."""
        optimizer = torch.optim.AdamW(list(self._weights.values()), lr=RATE, weight_decay=0.0)
        rng = np.random.default_rng(self._training.seed)
        began_s, step, share = now_s(), 0, 0.0
        while share < 1.0:
            chosen: list[int] = rng.integers(len(texts), size=TEXTS).tolist()
            for group in optimizer.param_groups:
                group["lr"] = RATE * cosine(share)
            losses = [self._loss(texts[i]) for i in chosen]
            loss = torch.stack(losses).mean()
            value = finite_loss(loss, step)
            optimizer.zero_grad()
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            torch.nn.utils.clip_grad_norm_(list(self._weights.values()), 1.0)
            optimizer.step()  # pyright: ignore[reportUnknownMemberType]
            step += 1
            most = self._training.steps
            share = (now_s() - began_s) / self._training.seconds if most is None else step / most
            progress(min(share, 1.0), value)
        return step

    def _loss(self, text: Known) -> torch.Tensor:
        first = max(0, text.num_prompt - 2)
        with torch.no_grad():
            after = tensor(text.states[3][1:]).float()
            wanted = torch.softmax(after @ self._target.T, -1)
        losses: list[torch.Tensor] = []
        for depth, logits in enumerate(self._passes(text)):
            begin = first + depth
            said = torch.log_softmax(logits[begin:], -1)
            losses.append(-(wanted[begin:] * said).sum(-1).mean() * DECAY**depth)
        return torch.stack(losses).sum()

    def _passes(self, text: Known) -> list[torch.Tensor]:
        """Logits [places, N] of each pass; those of pass s begin to mean something at place s - 1."""
        w = self._weights
        ids = np.searchsorted(self._embed_ids, text.ids[1:])
        e = _norm(self._embed[tensor(ids)], w["midlayer.input_layernorm.weight"])
        fused = torch.cat([tensor(text.states[i][:-1]).float() for i in range(3)], -1) @ w["fc.weight"].T
        count = len(e)
        angles = torch.arange(count)[:, None] * BASE ** -(torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        turn = torch.cos(angles), torch.sin(angles)
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        found: list[torch.Tensor] = []
        x = fused
        for _ in range(self._training.heads):
            h = torch.cat([e, _norm(x, w["midlayer.hidden_norm.weight"])], -1)
            q, k, v = (
                (h @ w[f"midlayer.self_attn.{part}_proj.weight"].T)
                .view(count, self._heads, HEAD_SIZE)
                .transpose(0, 1)
                for part in "qkv"
            )
            keys.append(_rotate(k, turn))
            values.append(v)
            seen = _attend(_rotate(q, turn), keys, values).transpose(0, 1).reshape(count, -1)
            x = x + seen @ w["midlayer.self_attn.o_proj.weight"].T
            h = _norm(x, w["midlayer.post_attention_layernorm.weight"])
            gated = silu(h @ w["midlayer.mlp.gate_proj.weight"].T) * (h @ w["midlayer.mlp.up_proj.weight"].T)
            x = x + gated @ w["midlayer.mlp.down_proj.weight"].T
            found.append(_norm(x, w["norm.weight"]) @ w["lm_head.weight"].T)
            x = torch.cat([x[:1], x[:-1]])
        return found

    def acceptance(self, texts: Sequence[Known]) -> list[float]:
        """For each depth, the share of places of greedy texts where all drafts up to it are right."""
        return acceptance_by_depth(texts, self._training.heads, self._guesses)

    def _guesses(self, text: Known, first: int, last: int) -> NDArray[Any]:
        best = [logits.argmax(-1).numpy() for logits in self._passes(text)]
        return np.stack([self._tokens[best[s][first + s : last + s]] for s in range(len(best))])

    def config(self, width: int, vocab_size: int) -> dict[str, Any]:
        """`config.json`."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": width,
            "vocab_size": vocab_size,
            "draft_vocab_size": len(self._tokens),
            "num_hidden_layers": 1,
            "intermediate_size": 2 * width,
            "num_attention_heads": self._heads,
            "num_key_value_heads": self._heads,
            "head_dim": HEAD_SIZE,
            "hidden_act": "silu",
            "rms_norm_eps": EPS,
            "rope_theta": BASE,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self._layers)},
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All weights by name."""
        found: dict[str, NDArray[Any]] = {"d2t": self._tokens.astype(np.int64) - np.arange(len(self._tokens))}
        for name, values in self._weights.items():
            found[name] = bfloat16(values.detach().numpy())
        return found


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of [heads, places, HEAD_SIZE], pairs half a head apart."""
    first, second = x.chunk(2, -1)
    cosines, sines = turn
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def _attend(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """[heads, places, HEAD_SIZE]: the last pass's queries over what its places see (the page's head)."""
    count, depth = q.shape[1], len(keys) - 1
    place = torch.arange(count)
    scores = q @ keys[0].mT / math.sqrt(HEAD_SIZE)
    scores = scores.masked_fill(place[None, :] > place[:, None] - depth, -1e9)
    own: list[torch.Tensor] = []
    back = [torch.clamp(place - (depth - s), min=0) for s in range(1, depth + 1)]
    for s, at in enumerate(back, 1):
        score = (q * keys[s][:, at]).sum(-1, keepdim=True) / math.sqrt(HEAD_SIZE)
        own.append(score.masked_fill((place < depth - s)[:, None], -1e9))
    weights = torch.softmax(torch.cat([scores, *own], -1), -1)
    out = weights[..., :count] @ values[0]
    for s, at in enumerate(back, 1):
        out = out + weights[..., count + s - 1 : count + s] * values[s][:, at]
    return out
