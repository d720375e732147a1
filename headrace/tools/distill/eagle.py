"""Trains EAGLE-3 heads (`compute/spec/heads/eagle`) on the target's states.

One layer sees, at place i, the embedding of token i + 1 and a feature, and learns the target's distribution
of token i + 2. When it drafts, the features of its first place are the target's, later ones its own.
So it is trained as it is used: pass s goes on from what pass s - 1 gave one place before (Li et al. 2025,
arXiv:2503.01840, training-time test).

    pass 1     place i sees places <= i, all with features of the target
    pass s     place i sees places <= i - s + 1 of pass 1, and one of each pass from 2 to s: its own chain

Further passes cost as much as the first and teach less: in the beginning there is one, then one text of a
step goes through all.

What is linear in the task is not left to gradients: features are the target's last states, and the layer
begins as the best linear map from [embedding, feature] to the next of these states, through an attention in
which each place sees itself (queries and keys of an embedding are the same random projection of it).
"""

import math
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

HEAD_SIZE = 64
TEXTS = 4
"""Of a step."""
ALONE = 1 / 3
"""Share of a training, where it begins anew, with one pass only."""
MAX_NORM = 1.0
"""The gradient of a step is cut to this length."""
BASE = 10000.0
EPS = 1e-5
SELF = 1.0
"""Size of the projection by which a place knows itself: a score of 8 on average, others' about 0."""


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
        self._weights = self._begin(training.seed)
        self._alone = ALONE if training.start is None else 0.0
        if training.start is not None:
            self._weights = taken_over(training.start, self._weights)

    def _begin(self, seed: int) -> dict[str, torch.Tensor]:
        width, inner = self._width, self._heads * HEAD_SIZE
        generator = torch.Generator().manual_seed(seed)

        def draw(n: int, k: int) -> torch.Tensor:
            return torch.randn(n, k, generator=generator) / math.sqrt(k)

        fc = torch.zeros(width, 3 * width)
        fc[:, 2 * width :] = torch.eye(width)
        own = torch.cat([SELF * draw(inner, width), torch.zeros(inner, width)], 1)
        weights = {
            "fc.weight": fc,
            "midlayer.self_attn.q_proj.weight": own + 0.02 * draw(inner, 2 * width),
            "midlayer.self_attn.k_proj.weight": own + 0.02 * draw(inner, 2 * width),
            "midlayer.self_attn.v_proj.weight": torch.zeros(inner, 2 * width),
            "midlayer.self_attn.o_proj.weight": torch.eye(width, inner),
            "midlayer.mlp.gate_proj.weight": draw(2 * width, width),
            "midlayer.mlp.up_proj.weight": draw(2 * width, width),
            "midlayer.mlp.down_proj.weight": torch.zeros(width, 2 * width),
            "lm_head.weight": self._target.clone(),
        }
        for name in (
            "midlayer.input_layernorm",
            "midlayer.hidden_norm",
            "midlayer.post_attention_layernorm",
            "norm",
        ):
            weights[name + ".weight"] = torch.ones(width)
        return {name: values.requires_grad_() for name, values in weights.items()}

    def _fit(self, texts: Sequence[Known]) -> None:
        """Begin with what is linear; a last norm that turns states into the target's."""
        ones = torch.ones(self._width)
        given: list[torch.Tensor] = []
        wanted: list[torch.Tensor] = []
        above = below = torch.zeros(self._width)
        count = 0
        for text in texts:
            first = max(1, text.num_prompt - 2)
            states = _norm(tensor(text.states[2]).float(), ones)
            above = above + (states * tensor(text.states[3]).float())[first:].sum(0)
            below = below + states[first:].square().sum(0)
            given.append(torch.cat([_norm(self._embedded(text), ones)[first:], states[first:-1]], 1))
            wanted.append(states[first + 1 :] - states[first:-1])
            count += len(given[-1])
            if count > MAX_FIT:
                break
        found = ridge(torch.cat(given), torch.cat(wanted), RIDGE).T
        if not found.isfinite().all():
            return  # the first loss says so
        v = self._weights["midlayer.self_attn.v_proj.weight"]
        v[: self._width] = found[: len(v)]
        self._weights["norm.weight"][:] = above / below.clamp(min=EPS)

    def train(self, texts: Sequence[Known], progress: ProgressFn) -> int:
        """Train on texts; returns the number of steps."""
        if self._training.start is None:
            with torch.no_grad():
                self._fit(texts)
        order = Shuffled(len(texts), self._training.seed)

        def losses(share: float) -> Iterator[torch.Tensor]:
            """One by one: the graph of a text takes a few hundred MiB."""
            chosen: list[int] = order.take(TEXTS).tolist()
            for n, i in enumerate(chosen):
                passes = self._training.heads if n == 0 and share >= self._alone else 1
                yield self._loss(texts[i], passes) / len(chosen)

        return descend(list(self._weights.values()), losses, self._training, progress, MAX_NORM)

    def _loss(self, text: Known, passes: int) -> torch.Tensor:
        first = max(0, text.num_prompt - 2)
        with torch.no_grad():
            after = tensor(text.states[3][1:]).float()
            wanted = torch.softmax(after @ self._target.T, -1)
        losses: list[torch.Tensor] = []
        for depth, logits in enumerate(self._passes(text, passes, first)):
            said = torch.log_softmax(logits, -1)
            losses.append(-(wanted[first + depth :] * said).sum(-1).mean() * DECAY**depth)
        return torch.stack(losses).sum()

    def _embedded(self, text: Known) -> torch.Tensor:
        """Embeddings [places, width] of the tokens after each place."""
        return self._embed[tensor(np.searchsorted(self._embed_ids, text.ids[1:]))]

    def _passes(self, text: Known, passes: int, first: int) -> list[torch.Tensor]:
        """Logits [places - first - s + 1, N] of each pass s: of place `first` + s - 1 and those after it."""
        w = self._weights
        e = _norm(self._embedded(text), w["midlayer.input_layernorm.weight"])
        fused = torch.cat([tensor(text.states[i][:-1]).float() for i in range(3)], -1) @ w["fc.weight"].T
        count = len(e)
        angles = torch.arange(count)[:, None] * BASE ** -(torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        turn = torch.cos(angles), torch.sin(angles)
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        found: list[torch.Tensor] = []
        x = fused
        for depth in range(passes):
            x = _norm(x, w["midlayer.hidden_norm.weight"])
            h = torch.cat([e, x], -1)
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
            found.append(_norm(x[first + depth :], w["norm.weight"]) @ w["lm_head.weight"].T)
            x = torch.cat([x[:1], x[:-1]])
        return found

    def ranks(self, texts: Sequence[Known]) -> NDArray[np.int64]:
        """See `ranks_of`."""
        return ranks_of(texts, self._training.heads, self._tokens, self._logits)

    def _logits(self, text: Known, first: int, last: int) -> torch.Tensor:
        found = self._passes(text, self._training.heads, first)
        return torch.stack([logits[: last - first] for logits in found])

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
            "norm_before_residual": True,
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
