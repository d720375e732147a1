"""The masks of one step, made in a thread while the step computes."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from headrace.base.clock import now_s
from headrace.base.ids import SlotId
from headrace.host.grammar.library import library
from headrace.host.grammar.matcher import Matcher


class MaskMaker:
    """Makes masks. Between two calls of `start` the masks of the first must be taken.

    Args:
        words: 32-bit words of a mask.
        threads: most threads that work on the masks of a step.
    """

    def __init__(self, words: int, threads: int) -> None:
        self.seconds = 0.0
        """Time spent, so far."""
        self._words = words
        self._buffer = np.zeros((0, words), np.uint32)
        self._crew: Any = library().LLExecutor(num_threads=threads)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-masks")

    def start(self, slots: Sequence[SlotId], matchers: Sequence[Matcher]) -> "Masks":
        """Begin to make the masks of these slots; the matchers must not move before they are taken."""
        if len(matchers) > len(self._buffer):
            self._buffer = np.zeros((len(matchers), self._words), np.uint32)
        rows = self._buffer[: len(matchers)]
        return Masks(tuple(slots), rows, self._thread.submit(self._make, rows, matchers))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True)

    def _make(self, rows: np.ndarray[Any, Any], matchers: Sequence[Matcher]) -> None:
        began_s = now_s()
        if len(matchers) == 1:
            matchers[0].inner.unsafe_compute_mask_ptr(rows.ctypes.data, rows.nbytes)
        else:
            jobs = [(matcher.inner, i) for i, matcher in enumerate(matchers)]
            self._crew.unsafe_compute_mask_ptr(jobs, rows.ctypes.data, self._words * 4, len(matchers))
        for row, matcher in zip(rows, matchers, strict=True):
            if matcher.inner.is_error():
                row[:] = 0  # the library then allows the end tokens; an answer cut there would pass for whole
        self.seconds += now_s() - began_s


class Masks:
    """As `base/step.StepMasks`."""

    def __init__(self, slots: tuple[SlotId, ...], rows: np.ndarray[Any, Any], made: "Future[None]") -> None:
        self.slots = slots
        self._rows = rows
        self._made = made

    def take(self) -> memoryview:
        """Wait for the masks."""
        self._made.result()
        return self._rows.data
