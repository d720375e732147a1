"""GGUF files (versions 2 and 3), mapped into memory."""

import mmap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from headrace.base.errors import CheckpointError
from headrace.base.specs import GenerationDefaults, ModelSpec, TextArray, TokenizerSource
from headrace.compute.quant.scheme import SCHEMES
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.compute.weights.formats._gguf_config import ROPE_TENSORS, config_from_metadata
from headrace.compute.weights.formats._gguf_header import MAGIC, Header, TensorInfo, parse_header
from headrace.compute.weights.identity import content_id
from headrace.compute.weights.modelspec import FAMILIES, Config, Family, read_spec
from headrace.compute.weights.sources import GGUF, Layout, weight_sources
from headrace.compute.weights.tensors import Tensor, WeightMap

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_BIASED_PARTS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
_MAX_SMALL_TENSOR = 1 << 16


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """The container plugin."""

    name: str = "gguf"

    def matches(self, path: Path) -> bool:
        """Whether `path` is a file that begins with GGUF's magic number."""
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == MAGIC

    def open(self, path: Path) -> Checkpoint:
        """Open a file; see `Format`."""
        header, tensors = read_file(path)
        name, family = _family(header.metadata)
        spec, layout, config = _describe(name, family, header.metadata, tensors)
        return Checkpoint(
            path=path,
            format=self.name,
            spec=spec,
            weights=WeightMap(tensors, weight_sources(spec, layout), ROPE_TENSORS),
            tokenizer_source=TokenizerSource(
                gguf={k: v for k, v in header.metadata.items() if k.startswith("tokenizer.")}
            ),
            generation=_generation(header.metadata, config),
            content_id=content_id([path], _header_bytes(path, header)),
            description=_description(path, header, tensors),
        )


FORMAT = GgufFormat()


def read_file(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors of a file; data is mapped, not read.

    Raises:
        CheckpointError: see `parse_header`; or a tensor lies outside the file, unaligned, or over another
        one.
    """
    with path.open("rb") as file:
        if path.stat().st_size < len(MAGIC):
            raise CheckpointError(f"{path} is not a GGUF file: it has {path.stat().st_size} bytes")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = parse_header(memoryview(mapped))
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise CheckpointError(
            f"{path.name} is one of {header.metadata['split.count']} parts; join them with "
            f"`gguf-split --merge` first"
        )
    whole = np.frombuffer(mapped, np.uint8)
    ends = _extents(header, whole.shape[0])
    return header, {
        t.name: Tensor(
            name=t.name,
            type_name=t.type_name,
            shape=t.shape,
            data=whole[header.data_start + t.offset : ends[t.name]],
        )
        for t in header.tensors
    }


def _extents(header: Header, file_size: int) -> dict[str, int]:
    """File offset of each tensor's end, after checking that it lies inside the file and over no other tensor.

    A tensor of an unknown format extends at most to the next one; it is refused when it is used.
    """
    ends: dict[str, int] = {}
    previous, reach = "", header.data_start
    ordered = sorted(header.tensors, key=lambda t: t.offset)
    for tensor, following in zip(ordered, [*ordered[1:], None], strict=False):
        start = header.data_start + tensor.offset
        if tensor.offset % header.alignment:
            raise CheckpointError(f"tensor {tensor.name!r} is not aligned to {header.alignment} bytes")
        if start < reach:
            raise CheckpointError(f"tensors {previous!r} and {tensor.name!r} overlap")
        limit = file_size if following is None else header.data_start + following.offset
        size = _stored_bytes(tensor)
        end = limit if size is None else start + size
        if end > file_size or start > file_size:
            raise CheckpointError(
                f"tensor {tensor.name!r} ends at byte {end}, but the file has {file_size}: "
                f"it is truncated or broken"
            )
        ends[tensor.name] = end
        previous, reach = tensor.name, end
    return ends


def _stored_bytes(tensor: TensorInfo) -> int | None:
    if tensor.type_name not in SCHEMES.names():
        return None
    row_bytes = SCHEMES.get(tensor.type_name).row_bytes(tensor.shape[-1])
    return prod(tensor.shape[:-1]) * row_bytes


def _family(metadata: Mapping[str, Any]) -> tuple[str, Family]:
    architecture = metadata.get("general.architecture")
    families = FAMILIES.all()
    known = {f.gguf_architecture: name for name, f in families.items() if f.gguf_architecture}
    if not isinstance(architecture, str) or architecture not in known:
        raise CheckpointError(
            f"model architecture {architecture!r} is not supported; "
            f"known in GGUF files: {', '.join(sorted(known))}"
        )
    name = known[architecture]
    if name == "llama" and metadata.get("llama.attention.sliding_window"):
        name = "mistral"
    return name, families[name]


def _describe(
    name: str, family: Family, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[ModelSpec, Layout, Mapping[str, Any]]:
    embed = tensors.get(GGUF.embed)
    if embed is None or len(embed.shape) != 2:
        raise CheckpointError(f"the GGUF file lacks the matrix {GGUF.embed!r}")

    def floats(tensor_name: str) -> list[float] | None:
        tensor = tensors.get(tensor_name)
        if tensor is None:
            return None
        if tensor.type_name != "f32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_SMALL_TENSOR:
            raise CheckpointError(f"tensor {tensor_name!r} must be a small f32 vector")
        return [float(v) for v in tensor.data.view(np.float32)]

    config = config_from_metadata(metadata, embed.shape[0], GGUF.head not in tensors, floats)
    config |= family.gguf_config(config)
    spec, _ = read_spec(name, family, Config(config, "the GGUF metadata", family.defaults))
    layout = Layout(
        naming=GGUF,
        biases=tuple(p for p, stem in _BIASED_PARTS.items() if f"blk.0.{stem}.bias" in tensors),
        fused=family.fused,
        interleaved=family.gguf_interleaved,
    )
    return spec, layout, config


def _generation(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> GenerationDefaults:
    ids = (metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS)
    valid = (i for i in ids if isinstance(i, int) and 0 <= i < config["vocab_size"])
    return GenerationDefaults(end_ids=tuple(dict.fromkeys(valid)))


def _header_bytes(path: Path, header: Header) -> bytes:
    with path.open("rb") as file:
        return file.read(header.data_start)


def _description(path: Path, header: Header, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.type_name] += tensor.data.shape[0]
    return {
        "format": "gguf",
        "version": header.version,
        "file_bytes": path.stat().st_size,
        "parameters": sum(prod(t.shape) for t in tensors.values()),
        "tensors": len(tensors),
        "bytes_by_type": dict(sizes.most_common()),
        "metadata": {k: _short(v) for k, v in header.metadata.items()},
    }


def _short(value: Any) -> Any:
    if isinstance(value, list | TextArray):
        return f"[{len(value)} values]" if len(value) > 8 else value
    return value if not isinstance(value, str) or len(value) <= 200 else value[:200] + "…"
