"""The engine's sums over steps, by phase: time, bytes, operations, and the prediction with its error."""

from headrace.base.step import StepPlan, StepResult
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import StepWork

PHASES = ("decode", "prefill")
_LEARN_ALL = 512
"""Observations of a phase after which one decoding step in `_LEARN_EVERY` is learned from."""
_LEARN_EVERY = 4


class StepMeter:
    """Sees every step of an engine.

    Args:
        model: predicts each step before it is told what the step took.
    """

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self._sums = {phase: _Sums() for phase in PHASES}
        self._last: tuple[int, StepWork] | None = None
        """The number of the step before, and its work."""

    def see(self, plan: StepPlan, result: StepResult) -> None:
        """Take a step that ran. Cost: linear in rows, some microseconds."""
        work = self._work_of(plan)
        seconds = result.seconds - result.draft_s  # the model's part: drafts are another's work
        sums = self._sums["decode" if work.is_decode else "prefill"]
        fit = self.model.fit_of(work)
        if work.is_decode and fit.num_seen > _LEARN_ALL and sums.steps % _LEARN_EVERY:
            predicted_s = self.model.predict(work)
        else:
            predicted_s = self.model.observe(work, seconds)
        memory_s, compute_s = self.model.roof_s(work)
        num_decodes = work.num_rows if work.is_decode else _num_decodes(plan)
        sums.decode_row_s += num_decodes * result.seconds
        sums.steps += 1
        sums.tokens += work.tokens
        sums.seconds += seconds
        sums.predicted_s += predicted_s
        sums.error_s += abs(predicted_s - seconds)
        sums.bytes_read += result.bytes_read
        sums.operations += result.operations
        if memory_s >= compute_s:
            sums.memory_roof_s += memory_s
        else:
            sums.compute_roof_s += compute_s

    def _work_of(self, plan: StepPlan) -> StepWork:
        """The work of a step; one that repeats the one before has a key more in each row."""
        last, shape = self._last, self.model.shape
        if plan.repeats is not None and last is not None and last[0] + 1 == plan.step and shape.sees_all:
            work = last[1]._replace(keys=last[1].keys + last[1].num_rows)
        else:
            work = shape.work_of(plan.rows)
        self._last = plan.step, work
        return work

    def counters(self) -> dict[str, float]:
        """Sums since start, `<phase>_<name>`."""
        return {
            f"{phase}_{name}": float(getattr(sums, field))
            for phase, sums in self._sums.items()
            for name, field in COUNTED.items()
        }

    def gauges(self) -> dict[str, float]:
        """The machine's limits, and the threads that they are of."""
        limits = self.model.limits
        return {
            "threads": limits.threads,
            "limit_read_bytes": limits.read_bytes_s,
            "limit_operations": self.model.peak_ops_s,
        }


def _num_decodes(plan: StepPlan) -> int:
    """Rows of a step with prompts that compute the next token of an answer."""
    return sum(row.sample and row.count - row.num_drafts == 1 for row in plan.rows)


class _Sums:
    """Of one phase."""

    __slots__ = (
        "bytes_read",
        "compute_roof_s",
        "decode_row_s",
        "error_s",
        "memory_roof_s",
        "operations",
        "predicted_s",
        "seconds",
        "steps",
        "tokens",
    )

    def __init__(self) -> None:
        self.steps = self.tokens = self.bytes_read = self.operations = 0
        self.seconds = self.predicted_s = self.error_s = 0.0
        self.memory_roof_s = self.compute_roof_s = self.decode_row_s = 0.0


COUNTED = {
    "steps": "steps",
    "step_tokens": "tokens",
    "step_seconds": "seconds",
    "step_predicted_seconds": "predicted_s",
    "step_error_seconds": "error_s",
    "step_bytes": "bytes_read",
    "step_operations": "operations",
    "memory_roof_seconds": "memory_roof_s",
    "compute_roof_seconds": "compute_roof_s",
    "decode_row_seconds": "decode_row_s",
}
"""Name of a counter without its phase -> where it is summed up."""
