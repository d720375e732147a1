"""Random weights in the shapes of a `config.json`, for measuring speed (values do not matter to it)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from headrace.base.specs import TokenizerSource
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.compute.weights.formats.safetensors import describe, find_family, read_generation, read_json
from headrace.compute.weights.identity import content_id
from headrace.compute.weights.sources import weight_sources
from headrace.compute.weights.tensors import Source, Tensor, WeightMap

POOL_VALUES = 1 << 20
SCALE = 0.02


@dataclass(frozen=True, slots=True)
class DummyFormat:
    """The container plugin. Chosen by name only (`load_format="dummy"`)."""

    name: str = "dummy"

    def matches(self, path: Path) -> bool:
        """Never: real weights are wanted unless `dummy` is asked for."""
        return False

    def open(self, path: Path) -> Checkpoint:
        """The model of `path / config.json` with f16 weights, the same in every run; see `Format`."""
        config = read_json(path / "config.json")
        name, family = find_family(config)
        spec, layout = describe(name, family, config)
        sources = weight_sources(spec, layout)
        tensors = _random_tensors(sources.values())
        return Checkpoint(
            path=path,
            format=self.name,
            spec=spec,
            weights=WeightMap(tensors, sources),
            tokenizer_source=TokenizerSource(directory=path),
            generation=read_generation(path, config, spec.vocab_size),
            content_id="dummy-" + content_id([path / "config.json"], b"dummy"),
            description={
                "format": "dummy",
                "parameters": sum(prod(t.shape) for t in tensors.values()),
                "tensors": len(tensors),
                "metadata": config,
            },
        )


FORMAT = DummyFormat()


def _random_tensors(sources: Iterable[Source]) -> dict[str, Tensor]:
    """Tensors cut out of one pool of normal f16 values, each from another place."""
    rng = np.random.default_rng(0)
    pool = (rng.standard_normal(POOL_VALUES) * SCALE).astype(np.float16)
    tensors: dict[str, Tensor] = {}
    for source in sources:
        count = prod(source.stored_shape)
        start = int(rng.integers(POOL_VALUES))
        if source.tensor not in tensors:
            values = np.resize(np.roll(pool, start), count)
            tensors[source.tensor] = Tensor(
                name=source.tensor, type_name="f16", shape=source.stored_shape, data=values.view(np.uint8)
            )
    return tensors
