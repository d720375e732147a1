"""The masks of one step, made in a thread while the step computes."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
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
        self._crew = _crew(threads)
        self._thread = _worker()

    def start(self, slots: Sequence[SlotId], matchers: Sequence[Matcher]) -> "Masks":
        """Begin to make the masks of these slots; the matchers must not move before they are taken."""
        if len(matchers) > len(self._buffer):
            self._buffer = np.zeros((len(matchers), self._words), np.uint32)
        rows = self._buffer[: len(matchers)]
        make = partial(self._make, rows, matchers)
        try:
            made = self._thread.submit(make)
        except RuntimeError:  # the machine has no thread left: made here, later than wanted
            self._thread = _worker()  # the old one has kept the job
            make()
            made = None
        return Masks(tuple(slots), rows, made)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True)

    def _make(self, rows: np.ndarray[Any, Any], matchers: Sequence[Matcher]) -> None:
        """Never raises: whoever has no mask has an empty one, and fails alone."""
        began_s = now_s()
        if len(matchers) == 1 or not self._make_together(rows, matchers):
            for row, matcher in zip(rows, matchers, strict=True):
                if not matcher.fill(row.ctypes.data, row.nbytes):
                    row[:] = 0
        self.seconds += now_s() - began_s

    def _make_together(self, rows: np.ndarray[Any, Any], matchers: Sequence[Matcher]) -> bool:
        """Make all masks with several threads; False: not done, somebody or something failed."""
        if self._crew is None or any(matcher.fault is not None for matcher in matchers):
            return False
        jobs = [(matcher.inner, i) for i, matcher in enumerate(matchers)]
        try:
            self._crew.unsafe_compute_mask_ptr(jobs, rows.ctypes.data, self._words * 4, len(matchers))
            for row, matcher in zip(rows, matchers, strict=True):
                if matcher.inner.is_error():
                    row[:] = 0  # the library allows the end tokens; an answer cut there would pass for whole
        except BaseException:  # noqa: BLE001 - one after the other, each finds out whether it is the one
            return False
        return True


def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-masks")


def _crew(threads: int) -> Any:
    """The library's threads; None: the machine has none left."""
    try:
        return library().LLExecutor(num_threads=threads)
    except BaseException:  # noqa: BLE001 - a panic of the library too; one thread makes the same masks
        return None


class Masks:
    """As `base/step.StepMasks`."""

    def __init__(
        self, slots: tuple[SlotId, ...], rows: np.ndarray[Any, Any], made: "Future[None] | None"
    ) -> None:
        self.slots = slots
        self._rows = rows
        self._made = made

    def take(self) -> memoryview:
        """Wait for the masks."""
        if self._made is not None:
            self._made.result()
        return self._rows.data
