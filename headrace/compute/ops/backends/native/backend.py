"""What the native backend offers; see `headrace.compute.ops.api.Backend`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from headrace import _native
from headrace.base.errors import ConfigError, ShapeError
from headrace.compute.ops.api import (
    F32,
    I32,
    Forward,
    ForwardContext,
    Handle,
    KVGeometry,
    KVPool,
    Program,
    SampleBatch,
    Sampled,
    Sampler,
    StepLimits,
    Weight,
)
from headrace.compute.ops.backends.native.fuse import PASSES
from headrace.compute.ops.backends.native.lower import lower
from headrace.compute.ops.backends.native.packer import NativePacker, pack, stacked
from headrace.compute.ops.backends.native.pool import NativeKVPool, NativeMatrix
from headrace.compute.ops.backends.native.program import NativeProgram
from headrace.compute.ops.backends.native.record import record


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How the native backend works.

    `threads` compute threads; `spin_us` microseconds that an idle thread spins before it sleeps; `pin` ties
    threads to cores; `fused` runs the recorded step with all fusions, else operation by operation. None
    changes a result. `rounds` does: activations that meet bfloat16 weights are rounded to bfloat16.
    """

    isa: str
    threads: int = 1
    spin_us: int = 100
    pin: bool = False
    fused: bool = True
    rounds: bool = False


class NativeBackend:
    """C++ kernels on the CPU. One run at a time; calls from several threads queue."""

    name = "native"

    def __init__(self, options: NativeOptions) -> None:
        try:
            self._runtime: Any = _native.Runtime(options.isa, options.threads, options.spin_us, options.pin)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"the native backend cannot start: {error}") from error
        self.options = options

    @property
    def isa(self) -> str:
        """Instruction set of the kernels."""
        return self.runtime.isa

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self.runtime.threads

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights and vectors taken over so far."""
        return self.runtime.bytes

    @property
    def runtime(self) -> Any:
        """Threads, kernels and weight memory.

        Raises:
            ConfigError: the backend is closed.
        """
        if self._runtime is None:
            raise ConfigError("the native backend is closed; make a new one")
        return self._runtime

    @property
    def packer(self) -> NativePacker:
        """See `Backend.packer`."""
        return NativePacker(self.runtime, rounds=self.options.rounds)

    def matrix(self, parts: Sequence[Weight]) -> NativeMatrix:
        """See `Backend.matrix`. Packs in all threads, straight from the source bytes."""
        rounds = self.options.rounds
        return stacked(parts, tuple(pack(self.runtime, part, rounds=rounds) for part in parts))

    def vector(self, values: F32) -> Handle:
        """See `Backend.vector`."""
        if values.ndim != 1 or values.size == 0:
            raise ShapeError(f"a vector needs one dimension and values, not shape {values.shape}")
        return self.runtime.vector(np.ascontiguousarray(values, np.float32))

    def rope_table(self, cosines: F32, sines: F32) -> Handle:
        """See `Backend.rope_table`. Both must be C-contiguous float32, as they are not copied."""
        try:
            return _native.RopeTable(cosines, sines)
        except (ValueError, TypeError) as error:
            raise ShapeError(
                f"angle tables must be two equal C-contiguous float32 arrays [rows, half]: {error}"
            ) from error

    def kv_pool(self, geometry: KVGeometry, num_blocks: int) -> NativeKVPool:
        """See `Backend.kv_pool`."""
        return NativeKVPool(geometry, num_blocks)

    def compile(self, forward: Forward, limits: StepLimits, kv: KVPool) -> Program:
        """See `Backend.compile`. Records `forward` once; the context it sees then must not be looked at."""
        if not isinstance(kv, NativeKVPool):
            raise ShapeError("a native program needs a KV pool of the native backend")
        recording = record(forward, cast("ForwardContext", None))
        if self.options.fused:
            for rewrite in PASSES:
                rewrite(recording)
        lower(recording, self.options.fused)
        try:
            return NativeProgram(self.runtime, recording, limits, kv)
        except (ValueError, TypeError) as error:
            raise ShapeError(f"the forward pass does not fit the kernels: {error}") from error

    def sample(self, logits: F32, batch: SampleBatch) -> Sampled:
        """See `Backend.sample`. Rows are shared among threads."""
        return self._sampled(lambda: self.runtime.sample(logits, batch))

    def sampler(self, batch: SampleBatch, vocab: int) -> Sampler:
        """See `Backend.sampler`."""
        try:
            draw = _native.Sampler(batch, len(batch.positions), vocab)
        except (ValueError, TypeError) as error:
            raise ShapeError(f"the inputs of sampling are wrong: {error}") from error
        runtime = self.runtime

        def run(logits: F32, maxima: F32 | None) -> tuple[I32, I32]:
            try:
                return draw(runtime, logits, maxima)
            except (ValueError, TypeError) as error:
                raise ShapeError(f"the inputs of sampling are wrong: {error}") from error

        return run

    def logprobs(self, logits: F32, tokens: I32, k: int) -> Sampled:
        """See `Backend.logprobs`."""
        return self._sampled(lambda: self.runtime.logprobs(logits, tokens, k))

    @staticmethod
    def _sampled(call: Any) -> Sampled:
        try:
            tokens, logprobs, ranks, errors, top_ids, top_logprobs = call()
        except (ValueError, TypeError) as error:
            raise ShapeError(f"the inputs of sampling are wrong: {error}") from error
        return Sampled(
            tokens=tokens,
            logprobs=logprobs,
            ranks=ranks,
            errors=errors,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
        )

    def close(self) -> None:
        """See `Backend.close`. Threads end when the last program is gone too."""
        self._runtime = None
