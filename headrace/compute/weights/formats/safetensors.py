"""Checkpoint directories: `config.json` and safetensors files, whole or in shards, mapped into memory."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from headrace.base.errors import CheckpointError
from headrace.base.specs import GenerationDefaults, ModelSpec, TokenizerSource
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.compute.weights.formats._safetensors_file import read_file
from headrace.compute.weights.identity import content_id
from headrace.compute.weights.modelspec import FAMILIES, Config, Family, read_spec
from headrace.compute.weights.sources import HUGGING_FACE, Layout, weight_sources
from headrace.compute.weights.tensors import Tensor, WeightMap

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_JSON_BYTES = 64 << 20
MAX_END_IDS = 64
MAX_SHARD_NAME = 200
"""Bytes; file systems take about as many."""
# The ranges of `SamplingParams`, so that a checkpoint is refused by name instead of every request to it.
_SAMPLING = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


@dataclass(frozen=True, slots=True)
class SafetensorsFormat:
    """The container plugin."""

    name: str = "safetensors"

    def matches(self, path: Path) -> bool:
        """Whether `path` is a directory with a configuration and safetensors files."""
        return (path / "config.json").is_file() and ((path / INDEX).is_file() or bool(_single_files(path)))

    def open(self, path: Path) -> Checkpoint:
        """Open a directory; see `Format`."""
        config = read_json(path / "config.json")
        name, family = find_family(config)
        tensors, files = read_tensors(path)
        tied = config.get("tie_word_embeddings")
        if tied is None and HUGGING_FACE.head not in tensors:
            # Configurations drop the flag when it has the class's default.
            config = {**config, "tie_word_embeddings": True}
        spec, layout = describe(name, family, config)
        ignored = _ignored(tensors, spec)
        header = json.dumps(config, sort_keys=True).encode()
        return Checkpoint(
            path=path,
            format=self.name,
            spec=spec,
            weights=WeightMap(tensors, weight_sources(spec, layout), ignored),
            tokenizer_source=TokenizerSource(directory=path),
            generation=read_generation(path, config, spec.vocab_size),
            content_id=content_id(files, header),
            description=_description(config, tensors, files),
        )


FORMAT = SafetensorsFormat()


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file of the checkpoint.

    Raises:
        CheckpointError: missing, too large, no JSON, or no object.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} has {size} bytes; the limit is {MAX_JSON_BYTES}")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return found


def find_family(config: Mapping[str, Any]) -> tuple[str, Family]:
    """The family of a `config.json`.

    Raises:
        CheckpointError: unknown architecture; the message lists the known ones.
    """
    families = FAMILIES.all()
    known = {a: name for name, family in families.items() for a in family.architectures}
    asked = config.get("architectures")
    if not isinstance(asked, list) or len(asked) != 1 or str(asked[0]) not in known:
        raise CheckpointError(
            f"model architecture {asked!r:.80} is not supported; known: {', '.join(sorted(known))}"
        )
    return known[asked[0]], families[known[asked[0]]]


def describe(name: str, family: Family, config: Mapping[str, Any]) -> tuple[ModelSpec, Layout]:
    """The model that a `config.json` describes, and how its tensors are laid out."""
    spec, biases = read_spec(name, family, Config(config, "config.json", family.defaults))
    layout = Layout(naming=HUGGING_FACE, biases=biases, fused=family.fused, norm_offset=family.norm_offset)
    return spec, layout


def read_generation(path: Path, config: Mapping[str, Any], vocab_size: int) -> GenerationDefaults:
    """Sampling defaults of `generation_config.json`, and end tokens of it and of `config.json` together.

    Raises:
        CheckpointError: a value out of range.
    """
    own = read_json(path / "generation_config.json") if (path / "generation_config.json").is_file() else {}
    reader = Config(own, "generation_config.json")
    values = {key: reader.optional_number(key, low, high) for key, (low, high) in _SAMPLING.items()}
    top_k = None if own.get("top_k") is None else reader.integer("top_k", 0, 1 << 31)
    ids = [*_end_ids(own.get("eos_token_id")), *_end_ids(config.get("eos_token_id"))]
    return GenerationDefaults(
        **values, top_k=top_k, end_ids=tuple(dict.fromkeys(i for i in ids if 0 <= i < vocab_size))
    )


def _end_ids(value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if len(ids) > MAX_END_IDS or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise CheckpointError(f"eos_token_id is {value!r}; at most {MAX_END_IDS} whole numbers are possible")
    return ids


def _single_files(path: Path) -> list[Path]:
    return [path / SINGLE] if (path / SINGLE).is_file() else sorted(path.glob("*.safetensors"))[:1]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], list[Path]]:
    """The tensors of a folder by name, and its files: those of its index, else its one file; data is mapped.

    Raises:
        CheckpointError: no such file, or a broken one.
    """
    if not (path / INDEX).is_file():
        files = _single_files(path)
        if not files:
            raise CheckpointError(f"{path} holds no safetensors file")
        return read_file(files[0]), files
    table = read_json(path / INDEX).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{INDEX} has no usable weight_map")
    shards = {name: _shard(path, name) for name in sorted(set(table.values()))}
    stored = {name: read_file(file) for name, file in shards.items()}
    missing = [t for t, shard in table.items() if t not in stored[shard]]
    if missing:
        raise CheckpointError(
            f"tensor {missing[0]!r} is not in {table[missing[0]]}, where {INDEX} says it is"
        )
    return {t: stored[shard][t] for t, shard in table.items()}, list(shards.values())


def _shard(path: Path, name: str) -> Path:
    """The file of a shard; its name comes from the checkpoint, so it must not lead outside."""
    is_short = len(name.encode(errors="replace")) <= MAX_SHARD_NAME
    if Path(name).name != name or not name.endswith(".safetensors") or not is_short:
        raise CheckpointError(
            f"{INDEX} names the shard {name!r}; a safetensors file of the same folder is needed"
        )
    if not (path / name).is_file():
        raise CheckpointError(f"the shard {path / name} is missing")
    return path / name


def _ignored(tensors: Iterable[str], spec: ModelSpec) -> set[str]:
    """Buffers that older exporters stored, and a head that is the embedding anyway."""
    ignored = {t for t in tensors if t.endswith(".rotary_emb.inv_freq")}
    if spec.tied_embeddings:
        ignored.add(HUGGING_FACE.head)
    return ignored


def _description(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], files: list[Path]
) -> dict[str, Any]:
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.type_name] += tensor.data.shape[0]
    return {
        "format": "safetensors",
        "file_bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
        "parameters": sum(prod(t.shape) for t in tensors.values()),
        "tensors": len(tensors),
        "bytes_by_type": dict(sizes.most_common()),
        "metadata": dict(config),
    }
