"""A folder of trained heads: `config.json` and safetensors. Untrusted: sizes are checked before use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CheckpointError
from headrace.base.specs import ModelSpec
from headrace.compute.ops.api import F32, I32, Handle, Weight
from headrace.compute.quant.scheme import find_scheme
from headrace.compute.weights.formats.safetensors import read_json, read_tensors
from headrace.compute.weights.modelspec import Config
from headrace.compute.weights.tensors import Tensor

FLOATS = ("f32", "f16", "bf16")
_EXPONENTS = {
    "f32": (np.uint32, np.uint32(0x7F800000)),
    "f16": (np.uint16, np.uint16(0x7C00)),
    "bf16": (np.uint16, np.uint16(0x7F80)),
}
"""The unsigned form of a number, and the bits of its exponent."""
_PART = 1 << 22
"""Numbers that are looked at together."""
_INTEGERS = {"i32": np.int32, "i64": np.int64}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What heads share with the model that they draft for."""

    spec: ModelSpec
    embed: Handle
    head: Handle
    head_bytes: int = 0
    """Of the head."""


class HeadFiles:
    """The configuration and tensors of a folder. What was not taken is refused in the end (`refuse_rest`).

    Args:
        path: the folder.
        defaults: settings that the configuration may leave out.

    Raises:
        CheckpointError: no folder, no configuration, no safetensors file, or a broken one.
    """

    def __init__(self, path: Path, defaults: Mapping[str, Any] | None = None) -> None:
        self.path = path
        if not path.is_dir():
            raise CheckpointError(f"{path} is no folder; heads are a folder with config.json and safetensors")
        pickles = sorted(f.name for f in path.iterdir() if f.suffix in _PICKLES)
        if pickles and not any(path.glob("*.safetensors")):
            raise CheckpointError(
                f"{path} holds heads in {pickles[0]!r:.80}. This is a pickle, which can run code, and "
                f"is never loaded; convert it to safetensors"
            )
        self.config = Config(read_json(path / "config.json"), str(path / "config.json"), defaults)
        self._tensors, _ = read_tensors(path)
        self._left = set(self._tensors)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.data.nbytes for tensor in self._tensors.values())

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(prod(tensor.shape) for tensor in self._tensors.values())

    def size(self, names: Iterable[str]) -> tuple[int, int]:
        """Bytes and numbers of those of these tensors that are there."""
        found = [self._tensors[name] for name in names if name in self._tensors]
        return sum(tensor.data.nbytes for tensor in found), sum(prod(tensor.shape) for tensor in found)

    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self._tensors)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._tensors

    def rename(self, prefix: str, new: str = "") -> None:
        """Put `new` in place of this prefix in all names that have it.

        Raises:
            CheckpointError: two tensors would have the same name.
        """
        renamed: dict[str, Tensor] = {}
        for name, tensor in self._tensors.items():
            short = new + name.removeprefix(prefix) if name.startswith(prefix) else name
            if short in renamed:
                raise CheckpointError(
                    f"{self.path} holds {short!r:.200} twice, with and without {prefix!r} before it; "
                    f"keep one of them"
                )
            renamed[short] = tensor
        self._tensors, self._left = renamed, set(renamed)

    def skip(self, *names: str) -> None:
        """Tensors that are allowed to be there and not used."""
        self._left -= set(names)

    def matrix(self, name: str, n: int, k: int) -> Weight:
        """A matrix [n, k] in its stored form.

        Raises:
            CheckpointError: missing, another shape, or no float format.
        """
        tensor = self._take(name, (n, k), FLOATS)
        return Weight(name=name, type_name=tensor.type_name, n=n, k=k, data=self._finite(tensor))

    def head(self, name: str, n: int, k: int) -> Weight:
        """A matrix [n, k] that gives logits. Raises like `matrix`, and where it is all zeros."""
        found = self.matrix(name, n, k)
        if not found.data.any():
            raise CheckpointError(
                f"tensor {name!r} of {self.path} is all zeros, so every token would be as likely as another: "
                f"this is no trained head; train it, or leave it out where the target's is to be used"
            )
        return found

    def columns(self, name: str, n: int, k: int, parts: int) -> list[Weight]:
        """A matrix [n, parts * k] cut into `parts` matrices [n, k], left to right."""
        whole = self.matrix(name, n, parts * k)
        size = find_scheme(whole.type_name, name).row_bytes(k)
        return [
            Weight(
                name=f"{name}.{i}",
                type_name=whole.type_name,
                n=n,
                k=k,
                data=np.ascontiguousarray(whole.data[:, i * size : (i + 1) * size]),
            )
            for i in range(parts)
        ]

    def vector(self, name: str, n: int) -> F32:
        """A vector [n] in float32; raises like `matrix`."""
        tensor = self._take(name, (n,), FLOATS)
        return find_scheme(tensor.type_name, name).dequantize(self._finite(tensor)).reshape(-1)

    def integers(self, name: str, n: int) -> NDArray[np.int64]:
        """A vector of `n` whole numbers; raises like `matrix`."""
        tensor = self._take(name, (n,), tuple(_INTEGERS))
        return np.ascontiguousarray(tensor.data).view(_INTEGERS[tensor.type_name]).astype(np.int64)

    def refuse_rest(self) -> None:
        """Refuse tensors and settings that nobody read.

        Raises:
            CheckpointError: names the first.
        """
        if self._left:
            raise CheckpointError(
                f"{self.path} holds {len(self._left)} tensors that such heads do not have, first "
                f"{min(self._left)!r:.200}"
            )
        self.config.refuse_unread()

    def must_equal(self, key: str, wanted: int) -> None:
        """Refuse heads that were made for another target.

        Raises:
            CheckpointError: the configuration has another value for `key`.
        """
        found: Any = self.config.value(key, wanted)
        if found != wanted:
            raise CheckpointError(
                f"{key} is {found!r:.40} in {self.config.where}, and {wanted} in the target: these heads "
                f"were made for another model"
            )

    def _finite(self, tensor: Tensor) -> NDArray[np.uint8]:
        """The rows of a tensor; NaN and infinities have all bits of the exponent set."""
        rows = tensor.rows()
        unsigned, exponent = _EXPONENTS[tensor.type_name]
        bits = tensor.data.view(unsigned)
        for first in range(0, len(bits), _PART):  # the masked copy of a whole head might be a gigabyte
            if ((bits[first : first + _PART] & exponent) == exponent).any():
                raise CheckpointError(
                    f"tensor {tensor.name!r} of {self.path} holds NaN or infinite values: these heads were "
                    f"trained or written badly; train or convert them again"
                )
        return rows

    def _take(self, name: str, shape: tuple[int, ...], types: tuple[str, ...]) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path} lacks the tensor {name!r}")
        if tensor.shape != shape:
            raise CheckpointError(
                f"tensor {name!r} of {self.path} has shape {list(tensor.shape)}; {list(shape)} is needed"
            )
        if tensor.type_name not in types:
            raise CheckpointError(
                f"tensor {name!r} of {self.path} has the format {tensor.type_name}; known: {', '.join(types)}"
            )
        self._left.discard(name)
        return tensor


def token_map(ids: NDArray[np.int64], vocab_size: int, what: str) -> I32:
    """Tokens that a smaller vocabulary stands for, checked.

    Raises:
        CheckpointError: a token outside the vocabulary, or one that occurs twice.
    """
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise CheckpointError(f"{what} names token {int(outside[0])}; the target has {vocab_size}")
    if len(np.unique(ids)) != len(ids):
        raise CheckpointError(f"{what} names a token twice")
    return ids.astype(np.int32)
