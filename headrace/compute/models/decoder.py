"""The one forward pass. What a family is lies in its `ModelSpec`; what a device does lies in its `Ops`.

```
embed ─► [ norm ─► qkv ─► split ─► (head norms) ─► rope ─► attention ─► o ─► (norm) ─►(+)
           norm ─► gate·up ─► split ─► act(gate)·up ─► down ─────────────► (norm) ─►(+) ] x layers
      ─► select wanted rows ─► norm ─► head ─► (softcap)
```
"""

from dataclasses import dataclass

from headrace.base.specs import LayerSpec, ModelSpec
from headrace.compute.ops.api import AttentionParams, Forward, ForwardContext, Handle, Ops, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Handles of one layer's attention; None where the family has none. `rope` is the layer's angle table."""

    norm: Handle
    qkv: Handle
    qkv_bias: Handle | None
    q_norm: Handle | None
    k_norm: Handle | None
    o: Handle
    o_bias: Handle | None
    post_norm: Handle | None
    rope: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpWeights:
    """Handles of one layer's MLP; None where the family has none."""

    norm: Handle
    gate_up: Handle
    gate_up_bias: Handle | None
    down: Handle
    down_bias: Handle | None
    post_norm: Handle | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """Handles of a whole model."""

    embed: Handle
    layers: tuple[tuple[AttentionWeights, MlpWeights], ...]
    norm: Handle
    head: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Hidden states that a forward pass keeps besides (`Program.kept`), in the order of these fields."""

    inputs_of: tuple[int, ...] = ()
    """What these layers get [T, E], ascending. The number of layers: what the last gives."""
    normed: bool = False
    """States after the last norm [T, E]."""
    wanted: bool = False
    """States after the last norm of the rows whose logits are wanted [S, E]."""


NO_TAPS = Taps()


def make_forward(spec: ModelSpec, weights: DecoderWeights, taps: Taps = NO_TAPS) -> Forward:
    """The forward pass of a model: a function of (ops, context) to logits [S, V]."""
    hidden = make_hidden(spec, weights, taps)

    def forward(ops: Ops, ctx: ForwardContext) -> Value:
        logits = ops.linear(hidden(ops, ctx), weights.head)
        return logits if spec.final_softcap is None else ops.softcap(logits, spec.final_softcap)

    return forward


def make_hidden(spec: ModelSpec, weights: DecoderWeights, taps: Taps = NO_TAPS) -> Forward:
    """The forward pass without the head: hidden states after the last norm [S, E]."""

    def forward(ops: Ops, ctx: ForwardContext) -> Value:
        x = ops.embed(ctx, weights.embed, spec.embed_scale)
        for index, layer in enumerate(spec.layers):
            attention, mlp = weights.layers[index]
            if index in taps.inputs_of:
                ops.keep(x)
            x = _attention(ops, ctx, x, (index, layer, spec.norm_eps), attention)
            x = _mlp(ops, x, layer, mlp, spec.norm_eps)
        if len(spec.layers) in taps.inputs_of:
            ops.keep(x)
        if taps.normed:
            ops.keep(ops.rms_norm(x, weights.norm, spec.norm_eps))
        chosen = ops.rms_norm(ops.select(ctx, x), weights.norm, spec.norm_eps)
        if taps.wanted:
            ops.keep(chosen)
        return chosen

    return forward


def attention_params(layer: LayerSpec) -> AttentionParams:
    """What the attention operation needs to know of a layer."""
    a = layer.attention
    return AttentionParams(
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_size=a.head_size,
        scale=a.scale,
        softcap=a.softcap,
        window=a.window,
    )


def _attention(
    ops: Ops, ctx: ForwardContext, x: Value, where: tuple[int, LayerSpec, float], w: AttentionWeights
) -> Value:
    index, layer, eps = where
    a = layer.attention
    kv = a.kv_heads * a.head_size
    h = ops.linear(ops.rms_norm(x, w.norm, eps), w.qkv, w.qkv_bias)
    q, k, v = ops.split(h, (a.heads * a.head_size, kv, kv))
    if a.qk_norm:
        q = ops.head_norm(q, w.q_norm, eps, a.head_size)
        k = ops.head_norm(k, w.k_norm, eps, a.head_size)
    if a.rope.kind != "none":
        q = ops.rope(ctx, q, w.rope, a.head_size)
        k = ops.rope(ctx, k, w.rope, a.head_size)
    h = ops.linear(ops.attention(ctx, q, k, v, index, attention_params(layer)), w.o, w.o_bias)
    if w.post_norm is not None:
        h = ops.rms_norm(h, w.post_norm, eps)
    return ops.add(x, h)


def _mlp(ops: Ops, x: Value, layer: LayerSpec, w: MlpWeights, eps: float) -> Value:
    h = ops.linear(ops.rms_norm(x, w.norm, eps), w.gate_up, w.gate_up_bias)
    gate, up = ops.split(h, (layer.mlp_width, layer.mlp_width))
    h = ops.linear(ops.glu(gate, up, layer.activation), w.down, w.down_bias)
    if w.post_norm is not None:
        h = ops.rms_norm(h, w.post_norm, eps)
    return ops.add(x, h)
