"""Seconds of a step: a roofline whose coefficients are fitted by phase.

    seconds = overhead + a * rows + max(m * weight bytes / read rate, c * operations / peak)
              + k * bytes of keys / read rate + p * operations of pairs / 16-bit peak

The maximum is the roofline of Williams, Waterman and Patterson (CACM 2009) over the matrices; the last two
terms are attention, which runs after them and so adds. m, c, k and p say how far from the roof a part is
(1: on it). Steps that decode and steps with prefill have coefficients of their own.
"""

from headrace.compute.device.limits import Limits
from headrace.engine.cost.fit import Fit
from headrace.engine.cost.shape import CostShape, StepWork

_OVERHEAD_S = 0.8e-3
_ROW_S = 40e-6
TYPICAL = (_OVERHEAD_S, _ROW_S, 1.3, 2.2, 1.5, 2.2)
"""Overhead, a, m, c, k and p where nothing was seen yet: medians of the models on the page of benchmarks."""
_PREFILL_DOUBT = (0.7, 0.2, 0.2, 0.7, 0.15, 0.7)
"""What steps with prefill hardly show (rows and keys of those who decode beside) stays near its guess."""
_FLOAT_COMPUTE = 1.4
"""c of matrices in float32, whose kernels come nearer to their roof."""


class StepModel:
    """Predicts steps of one model on one machine, and learns from those that ran.

    Args:
        shape: bytes and operations of the model.
        limits: the roofs.
        drift: see `Fit`; 0.0 for a fit to observations of one sitting.
    """

    def __init__(self, shape: CostShape, limits: Limits, *, drift: float = 0.006) -> None:
        self.shape = shape
        self.limits = limits
        self.peak_ops_s = _peak(shape, limits)
        self._memory_s = shape.weight_bytes / limits.read_bytes_s
        self._operation_s = 1.0 / self.peak_ops_s
        self._key_s = shape.token_bytes / limits.read_bytes_s
        self._pair_s = shape.per_pair / limits.int16_ops_s
        guess = [*TYPICAL]
        guess[3] = _FLOAT_COMPUTE if shape.is_float else guess[3]
        self._decode = Fit(guess, drift=drift)
        self._prefill = Fit(guess, doubt=_PREFILL_DOUBT, drift=drift)

    def fit_of(self, work: StepWork) -> Fit:
        """The coefficients of the step's phase: overhead, rows, m, c, k, p."""
        return self._decode if work.is_decode else self._prefill

    def terms(self, work: StepWork, fit: Fit) -> tuple[float, float, float, float, float, float]:
        """What the coefficients are multiplied by: of m and c the one that does not hold the step up is 0."""
        memory_s = self._memory_s
        compute_s = self._operation_s * self.shape.operations(work)
        if fit.coefficients[2] * memory_s >= fit.coefficients[3] * compute_s:
            compute_s = 0.0
        else:
            memory_s = 0.0
        return 1.0, work.num_rows, memory_s, compute_s, self._key_s * work.keys, self._pair_s * work.pairs

    def predict(self, work: StepWork) -> float:
        """Seconds of a step."""
        fit = self.fit_of(work)
        return fit.predict(self.terms(work, fit))

    def observe(self, work: StepWork, seconds: float) -> float:
        """Learn from a step; returns what had been predicted for it."""
        fit = self.fit_of(work)
        terms = self.terms(work, fit)
        predicted = fit.predict(terms)
        if seconds > 0.0:
            fit.observe(terms, seconds)
        return predicted

    def roof_s(self, work: StepWork) -> tuple[float, float]:
        """The least seconds that memory and arithmetic allow for a step, each by itself."""
        memory_s = self._memory_s + self._key_s * work.keys
        compute_s = self._operation_s * self.shape.operations(work) + self._pair_s * (work.keys + work.pairs)
        return memory_s, compute_s


def _peak(shape: CostShape, limits: Limits) -> float:
    """Operations a second of the matrices at most."""
    if shape.in_pairs:
        return limits.pair_ops_s
    return limits.fma_ops_s if shape.is_float else limits.int8_ops_s
