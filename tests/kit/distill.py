"""Tiny targets for `headrace distill`, prompts for them, and what is asked for."""

import json
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file

from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig
from headrace.tools.distill.plan import Plan
from tests.kit.scripted import scripted_checkpoint
from tests.kit.vocabs import byte_library

CYCLE = {i: 40 + (i - 40) * 2 % 59 if 40 < i < 99 else 41 for i in range(320)}
"""Every token is followed by one of 58, which follow each other in a circle."""


class Notes:
    """Remembers what a watcher is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.shares: dict[str, list[float]] = {}

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def move(self, share: float, note: str) -> None:
        assert note
        self.shares.setdefault(self.phases[-1], []).append(share)


def make_target(folder: Path, layers: int = 1) -> Path:
    """A model with one layer or two, whose inputs and output are the states of the same tokens."""
    shutil.copytree(scripted_checkpoint(CYCLE), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= 0.1  # less sure of itself, so that a few steps suffice
    if layers == 2:
        tensors |= {n.replace("layers.0", "layers.1"): t for n, t in tensors.items() if "layers.0" in n}
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(settings))
    byte_library().save(str(folder / "tokenizer.json"))
    return folder


def config_of(target: Path) -> EngineConfig:
    """Settings for a target."""
    return EngineConfig(
        model=ModelConfig(model=str(target)), kv=KVConfig(num_blocks=256), device=DeviceConfig(threads=1)
    )


def write_prompts(path: Path) -> Path:
    """Twenty prompts, a line each."""
    path.write_text("\n".join(chr(97 + i) * (1 + i % 3) for i in range(20)))
    return path


def plan(out: Path, prompts: Path, **more) -> Plan:
    """Medusa heads that are trained in a few steps."""
    base = {"method": "medusa", "minutes": 0.5, "heads": 2, "vocab": 64, "max_tokens": 48}
    return Plan(out=out, prompts=prompts, **(base | {"text_tokens": 800, "steps": 200} | more))
