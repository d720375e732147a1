"""EAGLE heads: one decoder layer that goes on from the target's features, token by token.

    place i     feature of token i (the target's state), embedding of token i + 1
    gives       a feature for place i + 1, and the logits of token i + 2

EAGLE-1 and 2 (Li et al. 2024, arXiv:2401.15077, arXiv:2406.16858): the feature is the state after the last
norm; `fc` joins [embedding, feature]; the layer mostly has no first norm; the head is the target's.

EAGLE-3 (Li et al. 2025, arXiv:2503.01840): the feature is `fc` of the residual stream before three layers;
the layer's attention sees [norm(embedding), norm(feature)], its residual is the feature; norm and head are
its own, and the head may know some tokens only: `d2t` is what is to be added to a column to get its token.

Embeddings are the target's, also where a file repeats them. Tensors are named as in the checkpoints of the
authors (https://github.com/SafeAILab/EAGLE), in safetensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import CheckpointError
from headrace.base.specs import LayerSpec
from headrace.compute.models.decoder import Taps, attention_params
from headrace.compute.models.rope import RopeBank
from headrace.compute.ops.api import (
    I32,
    Backend,
    Forward,
    ForwardContext,
    Handle,
    KVGeometry,
    Ops,
    Value,
    Weight,
)
from headrace.compute.spec.heads.files import HeadFiles, Target, token_map
from headrace.compute.weights.modelspec import FAMILIES

_Last = Callable[[Ops, ForwardContext, Value], Value]
NUM_FUSED = 3
"""Layers whose inputs an EAGLE-3 feature is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleHeads:
    """Loaded heads.

    Both passes write keys and values of layer 0 of their own KV memory for all tokens, give the logits of the
    wanted rows, and keep their features [S, width]. `first` is given what `taps` keep, [T, width] each;
    `further` is given features of a pass before. `tokens` [N] is the token of each column, None where columns
    are tokens. `pass_bytes` are the weights that a pass reads, `weight_bytes` those without the target's.
    """

    first: Forward
    further: Forward
    taps: Taps
    layer: LayerSpec
    tokens: I32 | None
    weight_bytes: int
    pass_bytes: int

    def geometry(self, block_size: int, dtype: str) -> KVGeometry:
        """The shape of the heads' keys and values."""
        attention = self.layer.attention
        return KVGeometry(
            layers=1,
            kv_heads=attention.kv_heads,
            head_size=attention.head_size,
            block_size=block_size,
            dtype=dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Handles up to attention. `qkv` and `fc` have one matrix for each of their inputs."""

    fc: tuple[Handle, ...]
    fc_bias: Handle | None
    qkv: tuple[Handle, ...]
    qkv_bias: Handle | None
    embed_norm: Handle | None
    state_norm: Handle | None
    rope: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """Handles after attention."""

    o: Handle
    post_norm: Handle
    gate_up: Handle
    down: Handle
    norm: Handle | None
    head: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """The layer with its handles."""

    layer: LayerSpec
    eps: float
    embed: tuple[Handle, float]
    """The target's embeddings and their scale."""
    residual_is_normed: bool
    """EAGLE-3: the residual is norm(feature) instead of the feature."""
    entry: _Entry
    rest: _Rest


def open_eagle(path: Path) -> tuple[HeadFiles, LayerSpec, bool]:
    """The files of a folder, the layer, and whether it is EAGLE-3; no weight is read.

    Raises:
        CheckpointError: broken, or a layer that Headrace lacks.
    """
    files = HeadFiles(path, FAMILIES.get("llama").defaults)
    files.rename("model.")
    files.rename("midlayer.", "layers.0.")
    config = files.config
    layers = config.integer("num_hidden_layers", 1, 64, 1)
    if layers != 1:
        raise CheckpointError(f"num_hidden_layers is {layers} in {config.where}; EAGLE heads have one layer")
    layer = FAMILIES.get("llama").layer(config, 0)
    if layer.attention.rope.is_measuring:
        raise CheckpointError(
            f"rope type {layer.attention.rope.kind!r} in {config.where} is not supported for EAGLE heads"
        )
    return files, layer, files.has("layers.0.hidden_norm.weight")


def load_eagle(path: Path, backend: Backend, target: Target, max_length: int) -> EagleHeads:
    """Heads of a folder, in the backend's form, for sequences of at most `max_length` tokens.

    Raises:
        CheckpointError: broken, or made for another target; the message names the tensor or setting.
    """
    files, layer, is_fused = open_eagle(path)
    width, vocab = target.spec.width, target.spec.vocab_size
    files.must_equal("hidden_size", width)
    files.must_equal("vocab_size", vocab)
    if is_fused:
        files.must_equal("target_hidden_size", width)
    bank = RopeBank([layer.attention.rope], max_length)
    table = backend.rope_table(*bank.table(layer.attention.rope))
    loading = _Loading(files, backend, width)
    known = files.config.integer("draft_vocab_size", 1, vocab, vocab) if is_fused else vocab
    weights = _read(loading, layer, target, known, is_fused=is_fused, rope=table)
    tokens = _tokens(files, known, vocab) if is_fused else None
    taps = Taps(inputs_of=_fused_layers(files, len(target.spec.layers))) if is_fused else Taps(normed=True)
    for name in ("bias", "torch_dtype", "dtype", "max_window_layers"):
        files.config.value(name)
    files.skip("embed_tokens.weight", "t2d", "layers.0.self_attn.rotary_emb.inv_freq")
    if not is_fused:
        files.skip("lm_head.weight")
    files.refuse_rest()
    last = partial(_layer, w=weights)
    further = partial(_further, width=width, last=last)
    first = partial(_first, width=width, w=weights, last=last) if is_fused else further
    return EagleHeads(
        first=first,
        further=further,
        taps=taps,
        layer=layer,
        tokens=tokens,
        weight_bytes=loading.weight_bytes,
        pass_bytes=loading.weight_bytes + (target.head_bytes if weights.rest.head is target.head else 0),
    )


class _Loading:
    """Hands tensors to the backend."""

    def __init__(self, files: HeadFiles, backend: Backend, width: int) -> None:
        self.files, self.backend, self.width = files, backend, width
        self.weight_bytes = 0

    def matrix(self, parts: Sequence[Weight]) -> Handle:
        """Matrices over each other."""
        self.weight_bytes += sum(part.data.nbytes for part in parts)
        return self.backend.matrix(parts)

    def cut(self, names: Sequence[str], rows: Sequence[int], parts: int) -> tuple[Handle, ...]:
        """Matrices [rows, parts * width] over each other, cut into one matrix per input."""
        pieces = [self.files.columns(name, n, self.width, parts) for name, n in zip(names, rows, strict=True)]
        return tuple(self.matrix([piece[i] for piece in pieces]) for i in range(parts))

    def vector(self, name: str) -> Handle:
        """A norm's weight."""
        return self.backend.vector(self.files.vector(name, self.width))

    def maybe(self, name: str) -> Handle | None:
        """The same, if it is there."""
        return self.vector(name) if self.files.has(name) else None

    def bias(self, names: Sequence[str], rows: Sequence[int]) -> Handle | None:
        """Biases behind each other; None: there is none."""
        if not any(self.files.has(name) for name in names):
            return None
        return self.backend.vector(
            np.concatenate([self.files.vector(name, n) for name, n in zip(names, rows, strict=True)])
        )


def _read(
    loading: _Loading, layer: LayerSpec, target: Target, known: int, *, is_fused: bool, rope: Handle
) -> _Weights:
    files, width, a = loading.files, loading.width, layer.attention
    at, kv, queries = "layers.0.", a.kv_heads * a.head_size, a.heads * a.head_size
    rows = (queries, kv, kv)
    qkv = [f"{at}self_attn.{part}_proj" for part in "qkv"]
    gate_up = [files.matrix(f"{at}mlp.{part}_proj.weight", layer.mlp_width, width) for part in ("gate", "up")]
    head = target.head
    if is_fused and files.has("lm_head.weight"):
        head = loading.matrix([files.head("lm_head.weight", known, width)])
    elif known < target.spec.vocab_size:
        raise CheckpointError(f"{files.path} lacks 'lm_head.weight' for its draft_vocab_size {known}")
    entry = _Entry(
        fc=loading.cut(["fc.weight"], [width], NUM_FUSED if is_fused else 2),
        fc_bias=loading.bias(["fc.bias"], [width]),
        qkv=loading.cut([name + ".weight" for name in qkv], rows, 2 if is_fused else 1),
        qkv_bias=loading.bias([name + ".bias" for name in qkv], rows),
        embed_norm=loading.maybe(at + "input_layernorm.weight"),
        state_norm=loading.maybe(at + "hidden_norm.weight"),
        rope=rope,
    )
    rest = _Rest(
        o=loading.matrix([files.matrix(at + "self_attn.o_proj.weight", width, queries)]),
        post_norm=loading.vector(at + "post_attention_layernorm.weight"),
        gate_up=loading.matrix(gate_up),
        down=loading.matrix([files.matrix(at + "mlp.down_proj.weight", width, layer.mlp_width)]),
        norm=loading.vector("norm.weight") if is_fused else None,
        head=head,
    )
    return _Weights(
        layer=layer,
        eps=files.config.number("rms_norm_eps", 0.0, 1.0),
        embed=(target.embed, target.spec.embed_scale),
        residual_is_normed=files.config.flag("norm_before_residual", False),
        entry=entry,
        rest=rest,
    )


def _tokens(files: HeadFiles, known: int, vocab: int) -> I32 | None:
    """The token of each column of an EAGLE-3 head."""
    if not files.has("d2t"):
        if known < vocab:
            raise CheckpointError(f"{files.path} lacks 'd2t', which draft_vocab_size {known} needs")
        return None
    return token_map(np.arange(known) + files.integers("d2t", known), vocab, f"d2t of {files.path}")


def _fused_layers(files: HeadFiles, layers: int) -> tuple[int, ...]:
    """The layers whose inputs are fused: given in `eagle_config`, or near the beginning, middle and end."""
    own: Any = files.config.value("eagle_config", {})
    listed: Any = own.get("eagle_aux_hidden_state_layer_ids") if type(own) is dict else None
    found: Any = (2, layers // 2, layers - 3) if listed is None else listed
    if not _is_ascending(found, layers):
        raise CheckpointError(
            f"the layers {found!r:.80} of {files.config.where} are not {NUM_FUSED} layers of the target "
            f"({layers}) in ascending order; name them in eagle_config.eagle_aux_hidden_state_layer_ids"
        )
    return tuple(found)


def _is_ascending(found: Any, layers: int) -> bool:
    if not isinstance(found, list | tuple) or len(found) != NUM_FUSED:  # pyright: ignore[reportUnknownArgumentType]
        return False
    if not all(type(i) is int and 0 <= i <= layers for i in found):  # pyright: ignore[reportUnknownVariableType]
        return False
    return found[0] < found[1] < found[2]


def _first(ops: Ops, ctx: ForwardContext, *, width: int, w: _Weights, last: _Last) -> Value:
    """A pass over what an EAGLE-3 feature is made of."""
    given = [ops.given(ctx, i, width) for i in range(NUM_FUSED)]
    parts = [ops.linear(x, matrix) for x, matrix in zip(given[1:], w.entry.fc[1:], strict=True)]
    fused = ops.linear(given[0], w.entry.fc[0], w.entry.fc_bias)
    return last(ops, ctx, ops.add(ops.add(fused, parts[0]), parts[1]))


def _further(ops: Ops, ctx: ForwardContext, *, width: int, last: _Last) -> Value:
    """A pass over features."""
    return last(ops, ctx, ops.given(ctx, 0, width))


def _entry(ops: Ops, ctx: ForwardContext, state: Value, w: _Weights) -> tuple[Value, Value]:
    """The residual stream, and queries, keys and values in one."""
    e, entry = ops.embed(ctx, *w.embed), w.entry
    if entry.state_norm is None:  # EAGLE-1
        x = ops.add(ops.linear(e, entry.fc[0], entry.fc_bias), ops.linear(state, entry.fc[1]))
        h = x if entry.embed_norm is None else ops.rms_norm(x, entry.embed_norm, w.eps)
        return x, ops.linear(h, entry.qkv[0], entry.qkv_bias)
    inner = ops.rms_norm(state, entry.state_norm, w.eps)
    outer = e if entry.embed_norm is None else ops.rms_norm(e, entry.embed_norm, w.eps)
    h = ops.add(ops.linear(outer, entry.qkv[0], entry.qkv_bias), ops.linear(inner, entry.qkv[1]))
    return inner if w.residual_is_normed else state, h


def _layer(ops: Ops, ctx: ForwardContext, state: Value, *, w: _Weights) -> Value:
    x, h = _entry(ops, ctx, state, w)
    a, layer, rest = w.layer.attention, w.layer, w.rest
    kv = a.kv_heads * a.head_size
    q, k, v = ops.split(h, (a.heads * a.head_size, kv, kv))
    if a.rope.kind != "none":
        q, k = (ops.rope(ctx, part, w.entry.rope, a.head_size) for part in (q, k))
    x = ops.add(x, ops.linear(ops.attention(ctx, q, k, v, 0, attention_params(layer)), rest.o))
    x = ops.select(ctx, x)
    h = ops.linear(ops.rms_norm(x, rest.post_norm, w.eps), rest.gate_up)
    gate, up = ops.split(h, (layer.mlp_width, layer.mlp_width))
    x = ops.add(x, ops.linear(ops.glu(gate, up, layer.activation), rest.down))
    ops.keep(x)
    return ops.linear(x if rest.norm is None else ops.rms_norm(x, rest.norm, w.eps), rest.head)
