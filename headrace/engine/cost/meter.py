"""The engine's sums over steps, by phase: time, bytes, operations, and the prediction with its error."""

from headrace.base.step import StepPlan, StepResult
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import StepWork

PHASES = ("decode", "prefill")
_LEARN_ALL = 512
"""Observations of a phase after which one decoding step in `_LEARN_EVERY` is learned from."""
_LEARN_EVERY = 4
MOST_HELD = 16
"""Steps that are held."""


class StepMeter:
    """Sees every step of an engine.

    Steps that repeat the one before are held and booked some at a time: for all but the first the model's
    code is then in the caches. What is told (`counters`) has them.

    Args:
        model: predicts each step before it is told what the step took.
    """

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self._sums = {phase: _Sums() for phase in PHASES}
        self._step = -1
        self._work = StepWork(is_decode=False, tokens=0, logits=0, keys=0.0, pairs=0.0, num_rows=0)
        # Number of the last step, and work of the last that was booked; between them: seconds, seconds of
        # drafting, bytes, operations.
        self._held: list[tuple[float, float, int, int]] = []

    def see(self, plan: StepPlan, result: StepResult) -> None:
        """Take a step that ran. Cost: linear in rows, some microseconds; constant when it repeats another."""
        took = result.seconds, result.draft_s, result.bytes_read, result.operations
        is_next, self._step = plan.step == self._step + 1, plan.step
        if plan.repeats is not None and is_next and self.model.shape.sees_all:
            self._held.append(took)
            if len(self._held) >= MOST_HELD:
                self._settle()
            return
        self._settle()
        self._work = self.model.shape.work_of(plan.rows)
        self._book(self._work.num_rows if self._work.is_decode else _num_decodes(plan), took)

    def _settle(self) -> None:
        """Book what is held: each step has the work of the one before, and a key more in each row."""
        for took in self._held:
            is_decode, tokens, logits, keys, pairs, num_rows = self._work
            self._work = StepWork(is_decode, tokens, logits, keys + num_rows, pairs, num_rows)
            self._book(num_rows, took)
        self._held.clear()

    def _book(self, num_decodes: int, took: tuple[float, float, int, int]) -> None:
        """Add the step whose work is the last."""
        work, (step_s, draft_s, bytes_read, operations) = self._work, took
        seconds = step_s - draft_s  # the model's part: drafts are another's work
        sums = self._sums["decode" if work.is_decode else "prefill"]
        fit = self.model.fit_of(work)
        if work.is_decode and fit.num_seen > _LEARN_ALL and sums.steps % _LEARN_EVERY:
            predicted_s = self.model.predict(work)
        else:
            predicted_s = self.model.observe(work, seconds)
        memory_s, compute_s = self.model.roof_s(work)
        sums.decode_row_s += num_decodes * step_s
        sums.steps += 1
        sums.tokens += work.tokens
        sums.seconds += seconds
        sums.predicted_s += predicted_s
        sums.error_s += abs(predicted_s - seconds)
        sums.bytes_read += bytes_read
        sums.operations += operations
        if memory_s >= compute_s:
            sums.memory_roof_s += memory_s
        else:
            sums.compute_roof_s += compute_s

    def counters(self) -> dict[str, float]:
        """Sums since start, `<phase>_<name>`."""
        self._settle()
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
