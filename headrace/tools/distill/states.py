"""Hidden states of the target along given tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.base.config import EngineConfig
from headrace.base.specs import ModelSpec
from headrace.compute.models.decoder import Taps, make_forward
from headrace.compute.models.load import load_model
from headrace.compute.ops.api import F32, I32, ForwardContext, StepLimits
from headrace.compute.quant.scheme import find_scheme
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.engine.build import Phases, open_model, packed_cache, start_backend

MAX_TOKENS = 512
"""Most tokens of a text."""
BLOCK = 16
HALF_MAX = np.float32(np.finfo(np.float16).max)
MIN_LAYERS = 2
"""Fewer have no three different inputs and outputs of layers."""


def fused_layers(layers: int) -> tuple[int, int, int]:
    """Layers whose inputs EAGLE heads fuse: near the beginning, in the middle, and what the last gives."""
    low = 2 if layers >= 8 else 0
    return low, (low + layers) // 2, layers


@dataclass(frozen=True, slots=True)
class Known:
    """A text with its states [T, width] of each tap, float16."""

    ids: I32
    num_prompt: int
    states: tuple[NDArray[np.float16], ...]


def half(values: F32) -> NDArray[np.float16]:
    """The same in float16; what is larger than its range becomes its largest value.

    Residual streams of some models have a few values of many thousands at the first token.
    """
    return np.clip(values, -HALF_MAX, HALF_MAX).astype(np.float16)


class Reader:
    """A loaded target that gives states instead of tokens.

    Args:
        config: the settings; model, device and `kv.dtype` count.
        taps_of: which states, by the number of layers.
    """

    def __init__(self, config: EngineConfig, taps_of: Callable[[int], Taps]) -> None:
        opened = open_model(config, with_text=False)
        self.checkpoint: Checkpoint = opened.checkpoint
        self.taps = taps_of(len(self.checkpoint.spec.layers))
        self.threads: int = opened.resolved.threads
        self._backend = start_backend(opened.resolved, Phases())
        length = min(MAX_TOKENS, opened.resolved.max_model_len)
        cache = packed_cache(opened.resolved.config.device)
        model = load_model(self.checkpoint, self._backend, length, max_slots=1, packed=cache)
        blocks = -(-length // BLOCK)
        geometry = model.geometry(BLOCK, opened.resolved.config.kv.dtype)
        self._pool = self._backend.kv_pool(geometry, blocks)
        model.shift_keys(self._pool)
        limits = StepLimits(max_tokens=length, max_rows=1, max_logits=1, table_width=blocks)
        self._rope = model.rope
        self._program = self._backend.compile(
            make_forward(model.spec, model.weights, self.taps), limits, self._pool
        )
        self._tables = np.arange(blocks, dtype=np.int32)[None]

    @property
    def spec(self) -> ModelSpec:
        """The target."""
        return self.checkpoint.spec

    def read(self, ids: tuple[int, ...], num_prompt: int) -> Known:
        """States along a text of at most `MAX_TOKENS` tokens; what is longer is cut."""
        tokens = np.array(ids[:MAX_TOKENS], np.int32)
        count = len(tokens)
        positions = np.arange(count, dtype=np.int32)
        rows = positions
        if self._rope.kind != "static":
            self._rope.begin(0, num_prompt)
            rows = self._rope.rows(0, positions, num_prompt).astype(np.int32, copy=False)
        self._program.run(
            ForwardContext(
                token_ids=tokens,
                positions=positions,
                row_of=np.zeros(count, np.int32),
                query_start=np.array([0, count], np.int32),
                key_len=np.array([count], np.int32),
                tables=self._tables,
                rope_rows=rows,
                logit_rows=np.array([count - 1], np.int32),
                kv=self._pool,
            )
        )
        return Known(tokens, num_prompt, tuple(half(kept) for kept in self._program.kept))

    def head_rows(self, tokens: I32) -> F32:
        """Rows of the target's head [len(tokens), width]."""
        name = "head.weight" if self.checkpoint.weights.has("head.weight") else "embed.weight"
        return self._rows(name, tokens)

    def embed_rows(self, tokens: I32) -> F32:
        """Embeddings of tokens [len(tokens), width]."""
        return self._rows("embed.weight", tokens) * np.float32(self.spec.embed_scale)

    def _rows(self, name: str, tokens: I32) -> F32:
        weight = self.checkpoint.weights.matrix(name)
        order = tokens if weight.order is None else weight.order[tokens]
        return find_scheme(weight.type_name, weight.name).dequantize(np.ascontiguousarray(weight.data[order]))

    def close(self) -> None:
        """Free it."""
        self._backend.close()
