"""Where each canonical weight of a model lies, for the two naming schemes: Hugging Face and GGUF."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headrace.base.specs import LayerSpec, ModelSpec
from headrace.compute.weights.tensors import Source, interleaved_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Stored names of one container: top-level tensors, and parts of a layer (after its prefix)."""

    embed: str
    norm: str
    head: str
    layer_prefix: str
    parts: Mapping[str, str]
    """Canonical part -> stored stem; weights and biases append `.weight` and `.bias`."""
    fused: Mapping[str, str]
    """`qkv` and `gate_up` -> stored stem."""
    sandwich: Mapping[str, str]
    """Parts whose stored name differs when norms surround attention and MLP."""


HUGGING_FACE = Naming(
    embed="model.embed_tokens.weight",
    norm="model.norm.weight",
    head="lm_head.weight",
    layer_prefix="model.layers.{}.",
    parts={
        "attn_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    fused={"qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"},
    sandwich={
        "post_attn_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
)

GGUF = Naming(
    embed="token_embd.weight",
    norm="output_norm.weight",
    head="output.weight",
    layer_prefix="blk.{}.",
    parts={
        "attn_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    },
    fused={"qkv": "attn_qkv", "gate_up": "ffn_up"},
    sandwich={"post_attn_norm": "post_attention_norm", "post_mlp_norm": "post_ffw_norm"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a family stores its weights in one container; fields as in `Family`."""

    naming: Naming
    biases: tuple[str, ...] = ()
    fused: bool = False
    norm_offset: float = 0.0
    interleaved: bool = False


def weight_sources(spec: ModelSpec, layout: Layout) -> dict[str, Source]:
    """Canonical name -> source for every weight of the model; `head` is left out when it is the embedding."""
    naming, width = layout.naming, spec.width
    sources = {
        "embed.weight": Source(tensor=naming.embed, shape=(spec.vocab_size, width)),
        "norm.weight": Source(tensor=naming.norm, shape=(width,), offset=layout.norm_offset),
    }
    if not spec.tied_embeddings:
        sources["head.weight"] = Source(tensor=naming.head, shape=(spec.vocab_size, width))
    for index, layer in enumerate(spec.layers):
        for name, source in _layer_sources(layer, width, layout):
            stored = naming.layer_prefix.format(index) + source.tensor
            sources[f"layers.{index}.{name}"] = replace(source, tensor=stored)
    return sources


def _layer_sources(layer: LayerSpec, width: int, layout: Layout) -> Iterator[tuple[str, Source]]:
    """(canonical name, source) of one layer; stored names without the layer's prefix."""
    shapes = _part_shapes(layer, width)
    fused = _fused_parts(layer, layout)
    names = {**layout.naming.parts, **(layout.naming.sandwich if layer.norms == "sandwich" else {})}
    orders = {}
    if layout.interleaved:
        a = layer.attention
        orders = {
            "q": interleaved_order(a.heads, a.head_size),
            "k": interleaved_order(a.kv_heads, a.head_size),
        }
    for part, (n, k) in shapes.items():
        stem, first, rows = fused.get(part, (names[part], 0, 0))
        order = orders.get(part)
        yield (
            f"{part}.weight",
            Source(tensor=f"{stem}.weight", shape=(n, k), first=first, stored_rows=rows, order=order),
        )
        if part in layout.biases:
            yield (
                f"{part}.bias",
                Source(tensor=f"{stem}.bias", shape=(n,), first=first, stored_rows=rows, order=order),
            )
    for part, n in _norm_sizes(layer, width).items():
        yield f"{part}.weight", Source(tensor=f"{names[part]}.weight", shape=(n,), offset=layout.norm_offset)


def _part_shapes(layer: LayerSpec, width: int) -> dict[str, tuple[int, int]]:
    a = layer.attention
    q, kv = a.heads * a.head_size, a.kv_heads * a.head_size
    return {
        "q": (q, width),
        "k": (kv, width),
        "v": (kv, width),
        "o": (width, q),
        "gate": (layer.mlp_width, width),
        "up": (layer.mlp_width, width),
        "down": (width, layer.mlp_width),
    }


def _fused_parts(layer: LayerSpec, layout: Layout) -> dict[str, tuple[str, int, int]]:
    """Part -> (stored stem, first row, rows of the stored tensor) for parts that share a tensor."""
    if not layout.fused:
        return {}
    a, stems = layer.attention, layout.naming.fused
    q, kv, mlp = a.heads * a.head_size, a.kv_heads * a.head_size, layer.mlp_width
    total = q + 2 * kv
    return {
        "q": (stems["qkv"], 0, total),
        "k": (stems["qkv"], q, total),
        "v": (stems["qkv"], q + kv, total),
        "gate": (stems["gate_up"], 0, 2 * mlp),
        "up": (stems["gate_up"], mlp, 2 * mlp),
    }


def _norm_sizes(layer: LayerSpec, width: int) -> dict[str, int]:
    sizes = {"attn_norm": width, "mlp_norm": width}
    if layer.attention.qk_norm:
        sizes |= {"q_norm": layer.attention.head_size, "k_norm": layer.attention.head_size}
    if layer.norms == "sandwich":
        sizes |= {"post_attn_norm": width, "post_mlp_norm": width}
    return sizes
