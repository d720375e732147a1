"""Memory that requests left behind goes back to the system while requests keep coming."""

from headrace.base.clock import now_s
from headrace.base.memory import give_back
from headrace.serve.front.record import Record

EVERY_S = 5.0
"""Giving back takes a fraction of a millisecond when it comes that often; now and then some."""


class Tidy:
    """Has the allocator return the pages that nothing uses.

    It keeps freed pages in the middle of its heap for good: with 200 streams a sixth of the process, which
    grew for two minutes. Nothing wakes up for this: the end of a request is the occasion.
    """

    def __init__(self) -> None:
        self._last_s = now_s()

    def report(self, record: Record) -> None:
        """A request is over."""
        now = now_s()
        if now - self._last_s >= EVERY_S:
            self._last_s = now
            give_back()
