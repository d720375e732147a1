"""What a technique would gain: the cost model's formula on the mean decoding step of a trace.

    seconds = overhead + a * rows + max(m * weight bytes / read rate, c * operations / peak)
              + k * bytes of keys / read rate

with the coefficients from which `engine/cost/model` starts before it has seen a machine. Only ratios of such
seconds are told, so a limit that was measured too low or too high cancels where one roof bounds both.
"""

from dataclasses import dataclass
from typing import Self

from headrace.engine.cost.model import TYPICAL
from headrace.engine.doctor.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """The mean step without prompts: rows, and the least seconds of its parts by the machine's limits."""

    rows: float
    weight_s: float
    key_s: float
    operation_s: float

    @classmethod
    def of(cls, trace: Trace) -> Self | None:
        """From the counters of a trace; None: no step was without prompts, or the server tells too little."""
        steps = trace.phase("headrace_phase_steps", "decode")
        read = trace.mean("headrace_limit_read_bytes_per_second")
        peak = trace.mean("headrace_limit_operations_per_second")
        weights = trace.mean("headrace_weight_bytes")
        if steps <= 0.0 or read <= 0.0 or peak <= 0.0 or weights <= 0.0:
            return None
        bytes_read = trace.phase("headrace_step_bytes_read", "decode") / steps
        weights = min(weights, bytes_read)
        return cls(
            rows=trace.phase("headrace_phase_step_tokens", "decode") / steps,
            weight_s=weights / read,
            key_s=(bytes_read - weights) / read,
            operation_s=trace.phase("headrace_step_operations", "decode") / steps / peak,
        )

    def seconds(self, *, rows: float = 1.0, weights: float = 1.0) -> float:
        """Of a step with so many times the rows, and weights of so many times the bytes."""
        overhead_s, row_s, memory, compute, keys, _ = TYPICAL
        matrices_s = max(memory * weights * self.weight_s, compute * rows * self.operation_s)
        return overhead_s + row_s * rows * self.rows + matrices_s + keys * rows * self.key_s

    def of_rows(self, times: float) -> float:
        """Times the tokens a second of steps with so many times the rows."""
        return times * self.seconds() / self.seconds(rows=times)

    def of_weights(self, share: float) -> float:
        """Times the tokens a second with weights of this share of the bytes."""
        return self.seconds() / self.seconds(weights=share)


def of_cores(compute_share: float, times: float) -> float:
    """Times the steps with so many times the cores, when only arithmetic, this share of the time, gains."""
    return 1.0 / (1.0 - compute_share * (1.0 - 1.0 / times))
