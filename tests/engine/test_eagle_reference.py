"""EAGLE heads in the engine against another computation of them: the one that trains them."""

import random

import numpy as np
import pytest

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig
from headrace.base.request import Request, SamplingParams
from headrace.compute.models.decoder import Taps
from headrace.tools.distill.folder import write_folder
from headrace.tools.distill.states import Reader, fused_layers
from tests.engine.test_heads import drafts_of
from tests.kit.engine import VOCAB, rig, tiny_llama

torch = pytest.importorskip("torch")

DEPTH = 4


def random_trainer(reader: Reader):
    """Heads in training whose weights, all random, are what is written of them."""
    from headrace.tools.distill.eagle import EagleTrainer
    from headrace.tools.distill.training import Training

    known = np.arange(3, VOCAB, 2, dtype=np.int32)
    everything = np.arange(VOCAB, dtype=np.int32)
    training = Training(heads=DEPTH, seconds=1.0, steps=1, seed=0)
    embed = everything, reader.embed_rows(everything)
    made = EagleTrainer(known, reader.head_rows(known), embed, reader.taps.inputs_of, training)
    generator = torch.Generator().manual_seed(2)
    for name, values in made._weights.items():
        noise = torch.randn(values.shape, generator=generator)
        drawn = 1 + 0.3 * noise if values.ndim == 1 else noise / values.shape[-1] ** 0.5
        made._weights[name] = drawn.bfloat16().float()
    return made


def test_drafts_are_those_of_the_computation_that_trains(tmp_path):
    """Positions, keys of the target's features and of its own, fusing, norms, tokens of columns."""
    config = EngineConfig(
        model=ModelConfig(model=str(tiny_llama())),
        kv=KVConfig(num_blocks=64, dtype="f32"),
        device=DeviceConfig(threads=1),
    )
    reader = Reader(config, lambda layers: Taps(inputs_of=fused_layers(layers), normed=True))
    trainer = random_trainer(reader)
    write_folder(tmp_path / "heads", trainer.config(reader.spec.width, VOCAB), trainer.tensors(), {})
    rng = random.Random(5)
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_ids=tuple(rng.randrange(3, VOCAB) for _ in range(length)),
            sampling=SamplingParams(temperature=0.0, seed=1, max_tokens=40, ignore_eos=True),
        )
        for i, length in enumerate((9, 40, 75))
    ]
    core = rig("native", 1).core(
        num_blocks=64, budget=24, dtype="f32", speculate=f"eagle={tmp_path / 'heads'},depth={DEPTH}"
    )
    found = drafts_of(core, requests)
    same = total = 0
    for ids, drafts in found.items():
        first = len(ids) - 2
        passes = trainer._passes(reader.read((*ids, *drafts), len(ids)), DEPTH, first)
        for depth, logits in enumerate(passes):
            total += 1
            same += int(trainer._tokens[int(logits[0].argmax())]) == drafts[depth]
    reader.close()
    assert total > 200
    assert same > 0.97 * total  # states are kept in 16 bits for training
    assert len({drafts[0] for drafts in found.values()}) > 10
