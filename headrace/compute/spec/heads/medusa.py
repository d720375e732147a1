"""Medusa heads: head i guesses the token after the next i + 1 from one hidden state of the target.

    h           the target's state after the last norm, at the last token computed
    block i     x <- x + silu(W x + b), once or several times, from x = h
    head i      logits = H x; its own H, or the target's

Two layouts of tensors are read. That of the paper (Cai et al. 2024, https://github.com/FasterDecoding/Medusa):
`{i}.{j}.linear.weight`, `{i}.{j}.linear.bias`, `{i}.{layers}.weight`, settings `medusa_num_heads` and
`medusa_num_layers`. And the one that vLLM reads: `blocks.{i}.layers.{j}.weight`, `lm_heads.{i}.weight`,
settings `num_heads`, `num_hidden_layers`, `hidden_size`, `vocab_size`; with `truncated_vocab_size` and
`token_map` its heads know some tokens only. Where no head has an H, it is the target's.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from headrace.base.errors import CheckpointError
from headrace.compute.ops.api import I32, Backend, Forward, ForwardContext, Handle, Ops, Value, Weight
from headrace.compute.spec.heads.files import HeadFiles, Target, token_map

MAX_HEADS = 16
MAX_BLOCKS = 8
Block = tuple[Handle, Handle]


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHeads:
    """Loaded heads.

    `forwards[i]` gives the logits of head i from states `given` [T, E], for the wanted rows. `tokens` [N] is
    the token of each column, None where columns are tokens. `pass_bytes` are the weights that one head reads,
    `weight_bytes` those of all heads without the target's.
    """

    forwards: tuple[Forward, ...]
    tokens: I32 | None
    weight_bytes: int
    pass_bytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes of the heads, and where their tensors are."""

    heads: int
    layers: int
    linear: str
    """`.format(head, layer)` names a block's matrix, without `.weight`."""
    head: str


def open_medusa(path: Path) -> tuple[HeadFiles, int, tuple[str, ...]]:
    """The files of a folder, the number of heads, and the matrices of their blocks; no weight is read.

    Raises:
        CheckpointError: broken.
    """
    files, layout = _opened(path)
    names = (
        layout.linear.format(head, layer) + ".weight"
        for head in range(layout.heads)
        for layer in range(layout.layers)
    )
    return files, layout.heads, tuple(names)


def load_medusa(path: Path, backend: Backend, target: Target) -> MedusaHeads:
    """Heads of a folder, in the backend's form.

    Raises:
        CheckpointError: broken, or made for another target; the message names the tensor or setting.
    """
    files, layout = _opened(path)
    width, vocab = target.spec.width, target.spec.vocab_size
    files.must_equal("hidden_size", width)
    files.must_equal("vocab_size", vocab)
    known = files.config.integer("truncated_vocab_size", 1, vocab, vocab)
    tokens = None
    if files.has("token_map") or known < vocab:
        tokens = token_map(files.integers("token_map", known), vocab, f"token_map of {path}")
    loaded = _Loading(files, backend, width, known)
    forwards: list[Forward] = []
    for index in range(layout.heads):
        blocks = tuple(loaded.block(layout.linear.format(index, j)) for j in range(layout.layers))
        head = _head(files, loaded, layout.head.format(index), target, is_whole=tokens is None)
        forwards.append(partial(_forward, width=width, blocks=blocks, head=head))
    files.config.value("original_lm_head")
    files.config.value("medusa_fc_bias")
    files.refuse_rest()
    own = files.has(layout.head.format(0))
    return MedusaHeads(
        forwards=tuple(forwards),
        tokens=tokens,
        weight_bytes=loaded.weight_bytes,
        pass_bytes=loaded.weight_bytes // layout.heads + (0 if own else target.head_bytes),
    )


def _opened(path: Path) -> tuple[HeadFiles, _Layout]:
    files = HeadFiles(path)
    files.rename("medusa_heads.")
    files.rename("medusa_head.")
    return files, _layout(files)


def _layout(files: HeadFiles) -> _Layout:
    config = files.config
    is_first = any(name.startswith("0.") for name in files.names())
    names = ("medusa_num_heads", "medusa_num_layers") if is_first else ("num_heads", "num_hidden_layers")
    heads = config.integer(names[0], 1, MAX_HEADS)
    layers = config.integer(names[1], 0 if is_first else 1, MAX_BLOCKS)
    if is_first:
        return _Layout(heads, layers, "{0}.{1}.linear", f"{{0}}.{layers}.weight")
    return _Layout(heads, layers, "blocks.{0}.layers.{1}", "lm_heads.{0}.weight")


def _head(files: HeadFiles, loaded: "_Loading", name: str, target: Target, *, is_whole: bool) -> Handle:
    """The matrix of a head, or the target's."""
    if files.has(name):
        return loaded.matrix(name)
    if any(".weight" in other and other.startswith("lm_heads.") for other in files.names()):
        raise CheckpointError(f"{files.path} lacks the tensor {name!r}, which its other heads have")
    if not is_whole:
        raise CheckpointError(
            f"{files.path} has a token_map and lacks {name!r}: the target's head knows all tokens"
        )
    return target.head


class _Loading:
    """Hands tensors to the backend."""

    def __init__(self, files: HeadFiles, backend: Backend, width: int, known: int) -> None:
        self._files, self._backend, self._width, self._known = files, backend, width, known
        self.weight_bytes = 0

    def matrix(self, name: str) -> Handle:
        weight = self._files.head(name, self._known, self._width)
        self.weight_bytes += weight.data.nbytes
        return self._backend.matrix([weight])

    def block(self, name: str) -> Block:
        """W over zeros, and b over ones, so that silu(W x + b) * 1 is a gated product like that of an MLP."""
        width = self._width
        weight = self._files.matrix(name + ".weight", width, width)
        bias = (
            self._files.vector(name + ".bias", width) if self._files.has(name + ".bias") else np.zeros(width)
        )
        nothing = Weight(
            name=name + ".ones", type_name=weight.type_name, n=width, k=width, data=np.zeros_like(weight.data)
        )
        self.weight_bytes += 2 * weight.data.nbytes
        both = np.concatenate([bias, np.ones(width)]).astype(np.float32)
        return self._backend.matrix([weight, nothing]), self._backend.vector(both)


def _forward(ops: Ops, ctx: ForwardContext, *, width: int, blocks: tuple[Block, ...], head: Handle) -> Value:
    x = ops.select(ctx, ops.given(ctx, 0, width))
    for weight, bias in blocks:
        gate, up = ops.split(ops.linear(x, weight, bias), (width, width))
        x = ops.add(x, ops.glu(gate, up, "silu"))
    return ops.linear(x, head)
