"""`open_checkpoint`: any supported model file or directory as one value. Opening reads no weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.base.errors import CheckpointError
from headrace.base.registry import Registry
from headrace.base.specs import GenerationDefaults, ModelSpec, TokenizerSource
from headrace.compute.weights.tensors import WeightMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint.

    `weights` maps files into memory; bytes are read when a backend takes them over. `content_id` names the
    content (header and samples of the data); it changes when the file is replaced. `description` is what
    `inspect` shows.
    """

    path: Path
    format: str
    spec: ModelSpec
    weights: WeightMap
    tokenizer_source: TokenizerSource
    generation: GenerationDefaults
    content_id: str
    description: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Format(Protocol):
    """A container of checkpoints."""

    name: str

    def matches(self, path: Path) -> bool:
        """Whether this container can be at `path` (cheap; no parsing)."""
        ...

    def open(self, path: Path) -> Checkpoint:
        """Open the checkpoint at `path`.

        Raises:
            CheckpointError: broken, hostile, or asking for something Headrace lacks (named).
        """
        ...


FORMATS: Registry[Format] = Registry("checkpoint format", "headrace.compute.weights.formats", "FORMAT")


def open_checkpoint(path: Path, load_format: str = "auto") -> Checkpoint:
    """Open a GGUF file or a checkpoint directory; no weight is read yet.

    Args:
        path: a `.gguf` file, or a directory with `config.json` and safetensors files.
        load_format: a format's name, or `auto` to choose by content. `dummy` makes random weights from a
            directory's `config.json`.

    Raises:
        CheckpointError: nothing usable is there; the message says what was found and what is supported.
        NotFoundError: unknown `load_format`.
    """
    if load_format != "auto":
        return FORMATS.get(load_format).open(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; give a .gguf file or a checkpoint directory")
    for name in FORMATS.names():
        candidate = FORMATS.get(name)
        if candidate.matches(path):
            return candidate.open(path)
    raise CheckpointError(_why_not(path))


def _why_not(path: Path) -> str:
    if path.is_file():
        return f"{path} is not a GGUF file (it does not begin with the bytes GGUF)"
    files = {f.suffix for f in path.iterdir()}
    pickled = sorted(files & {".bin", ".pt", ".pth", ".pkl", ".ckpt"})
    if pickled:
        return (
            f"{path} holds weights in {', '.join(pickled)} files. These are pickles, which can run code, and "
            f"are never loaded; convert the checkpoint to safetensors or GGUF."
        )
    return f"{path} holds no model: expected config.json with *.safetensors files, or a .gguf file"
