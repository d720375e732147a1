"""Health from the step counter: an engine lives when its steps advance while it has work."""

from collections.abc import Callable
from threading import Lock

from headrace.base.clock import now_s
from headrace.base.messages import Beat
from headrace.engine.outputs import EngineHealth


class Watch:
    """Follows the step counter.

    Args:
        beat: the latest step counter; None: the engine is not running.
        stall_s: seconds without a step, while there is work, after which the engine counts as stuck.
        clock_s: monotonic seconds.
    """

    def __init__(
        self, beat: Callable[[], Beat | None], stall_s: float, clock_s: Callable[[], float] = now_s
    ) -> None:
        self._beat = beat
        self._stall_s = stall_s
        self._clock_s = clock_s
        self._lock = Lock()
        self._steps = -1
        self._since_s = clock_s()

    def stalled_s(self) -> float:
        """Seconds since the last sign of progress; 0 when there is nothing to do."""
        beat = self._beat()
        with self._lock:
            if beat is None or not beat.has_work or beat.steps != self._steps:
                self._steps = -1 if beat is None else beat.steps
                self._since_s = self._clock_s()
            return self._clock_s() - self._since_s

    def health(self, death: str, *, is_closing: bool) -> EngineHealth:
        """The verdict; `death` says why the engine is not running, if known."""
        if self._beat() is None:
            reason = death or "the engine is not running, or gives no sign of life"
            return EngineHealth(alive=False, making_progress=False, ready=False, reason=reason)
        stalled_s = self.stalled_s()
        if stalled_s > self._stall_s:
            reason = f"no step for {stalled_s:.0f} s although there is work"
            return EngineHealth(alive=True, making_progress=False, ready=False, reason=reason)
        reason = "closing" if is_closing else ""
        return EngineHealth(alive=True, making_progress=True, ready=not is_closing, reason=reason)
