"""Angle tables of rotary embeddings, and which row of them a token uses.

The angles of a token depend on its position p and, for the kinds that measure the sequence (dynamic,
longrope), on the length of its prompt: the effective length is max(prompt length, p + 1). So a prompt
computed in chunks has the angles it has when computed at once, and a decoded token has those of the length
at which it was decoded.

RoPE: Su et al. 2021; linear: Chen et al. 2023; dynamic NTK: bloc97 and emozilla 2023; YaRN: Peng et al. 2023,
arXiv:2309.00071; LongRoPE: Ding et al. 2024, arXiv:2402.13753; llama3: the Llama 3.1 release.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import CheckpointError
from headrace.base.specs import RopeSpec
from headrace.compute.ops.api import F32, I32

F64 = NDArray[np.float64]
_ROWS_AT_ONCE = 4096


def inverse_frequencies(spec: RopeSpec, length: int) -> tuple[F64, float]:
    """Radians per position of each pair [half], and the factor on the tables, at an effective length."""
    pairs = np.arange(0, spec.dims, 2, dtype=np.float64) / spec.dims
    base, params = spec.base, spec.params
    if spec.kind == "dynamic":
        base *= float(_stretch(spec, length))
    plain = base**-pairs
    if spec.kind == "linear":
        return plain / params["factor"], 1.0
    if spec.kind == "llama3":
        return _llama3(spec, plain), 1.0
    if spec.kind == "yarn":
        return _yarn(spec, plain), yarn_attention_factor(spec)
    if spec.kind == "longrope":
        factors = params["long_factor" if length > spec.original_length else "short_factor"]
        return plain / np.asarray(factors, np.float64), longrope_attention_factor(spec)
    return plain, 1.0


def _llama3(spec: RopeSpec, plain: F64) -> F64:
    """Long wavelengths are stretched, short ones kept, a ramp between (or factors listed by a GGUF file)."""
    p = spec.params
    if "factors" in p:
        return plain / np.asarray(p["factors"], np.float64)
    turns = spec.original_length * plain / (2 * math.pi)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * plain / p["factor"] + smooth * plain


def _yarn(spec: RopeSpec, plain: F64) -> F64:
    """Equation 23: interpolate dimensions that turn seldom, keep those that turn often, ramp between."""
    p, dims = spec.params, spec.dims

    def dimension(turns: float) -> float:
        return dims * math.log(spec.original_length / (turns * 2 * math.pi)) / (2 * math.log(spec.base))

    low, high = dimension(p["beta_fast"]), dimension(p["beta_slow"])
    if p["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dims // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    return plain / p["factor"] * ramp + plain * (1 - ramp)


def yarn_attention_factor(spec: RopeSpec) -> float:
    """The factor on the tables: given, or 0.1 ln(factor) + 1 (equation 22), or the ratio of two such."""
    p = spec.params
    if "attention_factor" in p:
        return p["attention_factor"]

    def grow(scale: float) -> float:
        return 1.0 if p["factor"] <= 1 else 0.1 * scale * math.log(p["factor"]) + 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return grow(p["mscale"]) / grow(p["mscale_all_dim"])
    return grow(1.0)


def longrope_attention_factor(spec: RopeSpec) -> float:
    """The factor on cosines and sines: given, or sqrt(1 + ln(factor) / ln(original length))."""
    p = spec.params
    if "attention_factor" in p:
        return p["attention_factor"]
    if p["factor"] <= 1:
        return 1.0
    return math.sqrt(1 + math.log(p["factor"]) / math.log(spec.original_length))


def angles(spec: RopeSpec, positions: NDArray[np.integer], length: int) -> tuple[F32, F32]:
    """Cosines and sines [len(positions), half] float32 at an effective length; computed in float64.

    The frequency is rounded to float32 first, as every implementation does: positions then multiply the same
    number.
    """
    frequencies, factor = inverse_frequencies(spec, length)
    turns = positions.astype(np.float64)[:, None] * frequencies.astype(np.float32).astype(np.float64)[None, :]
    return (np.cos(turns) * factor).astype(np.float32), (np.sin(turns) * factor).astype(np.float32)


def growing_angles(spec: RopeSpec, first: int, end: int) -> tuple[F32, F32]:
    """Cosines and sines [end - first, half] of a dynamic embedding, each position p at length p + 1."""
    positions = np.arange(first, end)
    bases = spec.base * _stretch(spec, positions + 1.0)
    pairs = np.arange(0, spec.dims, 2, dtype=np.float64) / spec.dims
    frequencies = (bases[:, None] ** -pairs[None, :]).astype(np.float32).astype(np.float64)
    turns = positions[:, None] * frequencies
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def _stretch(spec: RopeSpec, length: Any) -> Any:
    """What a dynamic embedding multiplies its base by, at an effective length (a number or an array)."""
    if spec.dims <= 2:
        return np.ones_like(length, np.float64)
    grown = np.maximum(length, spec.original_length) / spec.original_length
    factor = spec.params["factor"]
    return (factor * grown - (factor - 1.0)) ** (spec.dims / (spec.dims - 2))


class RopeBank:
    """The angle tables of a model: one (cosines, sines) pair per distinct `RopeSpec`, all with the same rows.

    ```
    static kinds:  row p = position p
    longrope:      rows [0, P) short factors, rows [P, 2P) long factors
    dynamic:       row p < P = position p at length max(p + 1, original length), for every sequence;
                   rows [(slot + 1) * P, ...) = the prompt in that slot, when it is longer than the original
    ```

    Args:
        specs: rotary embeddings in use (duplicates are fine).
        max_length: P, the most positions of a sequence.
        max_slots: sequences that may run together; matters for dynamic only.

    Raises:
        CheckpointError: kinds that cannot share rows (dynamic with longrope, or with other original lengths).
    """

    def __init__(self, specs: Sequence[RopeSpec], max_length: int, max_slots: int = 64) -> None:
        distinct = [s for i, s in enumerate(specs) if s not in specs[:i]]
        self._specs = [s for s in distinct if s.kind != "none"]
        self._length = max_length
        measuring = [s for s in self._specs if s.is_measuring]
        if len({s.kind for s in measuring}) > 1:
            raise CheckpointError("a model with both dynamic and longrope layers is not supported")
        if len({s.original_length for s in measuring}) > 1:
            raise CheckpointError(
                f"{measuring[0].kind} layers with different original lengths are not supported: "
                f"{', '.join(str(s.original_length) for s in measuring)}"
            )
        self.kind = measuring[0].kind if measuring else "static"
        self._original = measuring[0].original_length if measuring else 0
        regions = {"static": 1, "longrope": 2, "dynamic": 1 + max_slots}[self.kind]
        self._tables = [self._make(spec, regions) for spec in self._specs]

    def _make(self, spec: RopeSpec, regions: int) -> tuple[F32, F32]:
        rows, half = regions * self._length, spec.dims // 2
        # Zeroed memory is not touched before it is written: unused slots of a dynamic bank cost address
        # space only.
        cosines, sines = np.zeros((rows, half), np.float32), np.zeros((rows, half), np.float32)
        for region, length in enumerate((0, 1 << 62) if self.kind == "longrope" else (0,)):
            here = slice(region * self._length, (region + 1) * self._length)
            cosines[here], sines[here] = angles(spec, np.arange(self._length), length)
        if spec.kind == "dynamic":
            for first in range(spec.original_length, self._length, _ROWS_AT_ONCE):
                end = min(first + _ROWS_AT_ONCE, self._length)
                cosines[first:end], sines[first:end] = growing_angles(spec, first, end)
        return cosines, sines

    def table(self, spec: RopeSpec) -> tuple[F32, F32]:
        """Cosines and sines [rows, half] of an embedding; `begin` rewrites dynamic ones in place."""
        return self._tables[self._specs.index(spec)]

    def begin(self, slot: int, prompt_len: int) -> None:
        """A sequence with this prompt enters a slot.

        Cost: a table row per prompt token when the kind is dynamic and the prompt longer than the original
        length, else nothing.
        """
        if self.kind != "dynamic" or prompt_len <= self._original:
            return
        start = (slot + 1) * self._length
        here = slice(start, start + prompt_len)
        for spec, (cosines, sines) in zip(self._specs, self._tables, strict=True):
            cosines[here], sines[here] = angles(spec, np.arange(prompt_len), prompt_len)

    def rows(self, slot: int, positions: I32, prompt_len: int) -> I32:
        """The table row of each position [N] int32 of the sequence in `slot`."""
        if self.kind == "static" or (self.kind == "dynamic" and prompt_len <= self._original):
            return positions
        if self.kind == "dynamic":
            own = positions < prompt_len
            return (positions + np.where(own, (slot + 1) * self._length, 0)).astype(np.int32)
        long = np.maximum(positions + 1, prompt_len) > self._original
        return (positions + np.where(long, self._length, 0)).astype(np.int32)

    def kv_domain(self, prompt_len: int) -> str:
        """What, besides the tokens, a sequence's keys depend on; part of its blocks' keys. Empty: nothing.

        A prompt within the original length has keys whose angles are a function of their position alone.
        """
        if self.kind == "static" or prompt_len <= self._original:
            return ""
        return "long" if self.kind == "longrope" else f"length:{prompt_len}"
