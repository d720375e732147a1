"""From seconds of steps to seconds of requests."""

from collections.abc import Sequence

from headrace.base.ids import SlotId
from headrace.base.step import Row
from headrace.engine.cost.model import StepModel

HOST_STEP_S = 0.15e-3
HOST_ROW_S = 25e-6
"""Scheduling, commit and messages around a step, and for each of its rows, beside the process that makes text
and the clients: measured in servers on two cores (0.18 to 0.23 ms with one row, 0.35 with eight).
"""


class Speeds:
    """Predictions of one engine.

    Args:
        model: predicts steps.
        chunk: tokens of a step, at most.
    """

    def __init__(self, model: StepModel, chunk: int) -> None:
        self._model = model
        self._chunk = chunk

    def step_s(self, rows: Sequence[Row]) -> float:
        """Seconds of a step, the engine's own work included."""
        work = self._model.shape.work_of(rows)
        return self._model.predict(work) + HOST_STEP_S + HOST_ROW_S * work.num_rows

    def ttft_s(self, prompt_tokens: int) -> float:
        """Seconds to the first token of a new prompt that is alone."""
        total, start = 0.0, 0
        while start < prompt_tokens:
            count = min(self._chunk, prompt_tokens - start)
            total += self.step_s([_row(0, start, count, is_last=start + count == prompt_tokens)])
            start += count
        return total

    def tpot_s(self, sequences: int, context: int) -> float:
        """Seconds between tokens of `sequences` that decode together behind `context` tokens each."""
        return self.step_s([_row(i, context - 1, 1, is_last=True) for i in range(sequences)])


def _row(slot: int, start: int, count: int, *, is_last: bool) -> Row:
    return Row(slot=SlotId(slot), lease=slot, start=start, count=count, sample=is_last)
