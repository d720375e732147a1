"""Show what a model file says of itself, without loading its weights."""

from typing import Annotated, Any

import typer

_BLOCK = 16


def command(
    model: Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Inspect a model's header."""
    from headrace.compute.weights.catalogue import locate
    from headrace.compute.weights.checkpoint import open_checkpoint
    from headrace.host.text.tokenizer import load_tokenizer

    opened = open_checkpoint(locate(model))
    tokenizer = load_tokenizer(opened.tokenizer_source)
    facts: dict[str, Any] = {
        "path": str(opened.path),
        **{k: v for k, v in opened.description.items() if k != "metadata"},
        "spec": _spec(opened.spec),
        "tokenizer": {
            "vocab_size": tokenizer.vocab_size,
            "bos_id": tokenizer.bos_id,
            "add_bos": tokenizer.add_bos,
        },
        "sampling_defaults": _given(opened.generation),
        "metadata": dict(opened.description.get("metadata", {})),
    }
    if json:
        import json as encoder

        print(encoder.dumps(facts, ensure_ascii=False, default=str))
    else:
        _show(facts)


def _spec(spec: Any) -> dict[str, Any]:
    """The decoder in numbers; KV bytes are those of one token, as the pool of blocks of 16 is allocated."""
    from headrace.compute.ops.api import KV_BITS, KVGeometry

    layer = spec.layers[0]
    shape = {"layers": len(spec.layers), "kv_heads": layer.attention.kv_heads}
    sizes = {
        dtype: -(
            -KVGeometry(
                **shape, head_size=layer.attention.head_size, block_size=_BLOCK, dtype=dtype
            ).block_bytes
            // _BLOCK
        )
        for dtype in sorted(KV_BITS)
    }
    windows = sorted({one.attention.window for one in spec.layers if one.attention.window is not None})
    return {
        "family": spec.family,
        "layers": len(spec.layers),
        "width": spec.width,
        "mlp_width": layer.mlp_width,
        "heads": layer.attention.heads,
        "kv_heads": layer.attention.kv_heads,
        "head_size": layer.attention.head_size,
        "vocab_size": spec.vocab_size,
        "max_length": spec.max_length,
        "rope": f"{layer.attention.rope.kind}, base {layer.attention.rope.base:g}",
        "windows": windows,
        "tied_embeddings": spec.tied_embeddings,
        "kv_bytes_per_token": sizes,
    }


def _given(defaults: Any) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "end_ids")
    return {name: value for name in names if (value := getattr(defaults, name)) not in {None, ()}}


def _show(facts: dict[str, Any]) -> None:
    from headrace.cli.tables import print_table

    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += [(f"{name}.{k}", str(v)) for k, v in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            rows.append((name, str(value)))
    print_table(("fact", "value"), rows)
