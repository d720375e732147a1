"""The reference backend: takes weights over as float32 arrays and runs forward passes eagerly."""

from collections.abc import Sequence

import numpy as np

from headrace.base.errors import CheckpointError
from headrace.compute.ops.api import (
    F32,
    I32,
    Forward,
    ForwardContext,
    KVGeometry,
    KVPool,
    SampleBatch,
    Sampled,
    Sampler,
    StepLimits,
    Weight,
)
from headrace.compute.ops.backends.reference.kv import ReferenceKV
from headrace.compute.ops.backends.reference.ops import Angles, Matrix, ReferenceOps
from headrace.compute.quant.scheme import find_scheme
from headrace.compute.sampling.logprobs import report
from headrace.compute.sampling.sampler import sample


class ReferenceProgram:
    """Calls the forward pass anew in every step."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.kept: Sequence[F32] = ()
        self.maxima: F32 | None = None

    def run(self, ctx: ForwardContext) -> F32:
        """Logits [S, V] of a step."""
        with np.errstate(invalid="ignore"):
            ops = ReferenceOps()
            logits = np.ascontiguousarray(self.forward(ops, ctx), np.float32)
        self.kept = ops.kept
        return logits


class ReferenceBackend:
    """See `Backend`. Needs four bytes per weight; use it for tests and where nothing else runs."""

    name = "reference"
    packer = None

    def matrix(self, parts: Sequence[Weight]) -> Matrix:
        """Dequantize and stack."""
        return Matrix(np.ascontiguousarray(np.concatenate([dequantize(part) for part in parts])))

    def vector(self, values: F32) -> F32:
        """A float32 vector, as it is."""
        return np.ascontiguousarray(values, np.float32)

    def rope_table(self, cosines: F32, sines: F32) -> Angles:
        """Angle tables, shared with the caller."""
        return Angles(cosines, sines)

    def kv_pool(self, geometry: KVGeometry, num_blocks: int) -> ReferenceKV:
        """Zeroed KV memory."""
        return ReferenceKV(geometry, num_blocks)

    def compile(self, forward: Forward, limits: StepLimits, kv: KVPool) -> ReferenceProgram:
        """A program that runs eagerly; limits do not matter."""
        return ReferenceProgram(forward)

    def sample(self, logits: F32, batch: SampleBatch) -> Sampled:
        """Draw one token per row."""
        return sample(logits, batch)

    def sampler(self, batch: SampleBatch, vocab: int) -> Sampler:
        """Draw again and again with one batch."""

        def draw(logits: F32, maxima: F32 | None) -> tuple[I32, I32]:
            sampled = sample(logits, batch)
            return sampled.tokens, sampled.errors

        return draw

    def logprobs(self, logits: F32, tokens: I32, k: int) -> Sampled:
        """Report log-probabilities without drawing."""
        return report(logits, tokens, k)

    def close(self) -> None:
        """Nothing to free."""


def dequantize(weight: Weight) -> F32:
    """The values [n, k] float32 of a weight, rows in output order.

    Raises:
        CheckpointError: unknown number format, or bytes that do not fit the shape.
    """
    scheme = find_scheme(weight.type_name, weight.name)
    wanted = (weight.n, scheme.row_bytes(weight.k))
    if weight.data.shape != wanted:
        raise CheckpointError(
            f"weight {weight.name} has bytes of shape {weight.data.shape}; {wanted} are needed"
        )
    values = scheme.dequantize(weight.data)
    return values if weight.order is None else values[weight.order]
