"""Proposers that raise: a guess that fails must not end the engine, whose answers need no guess."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from headrace.compute.spec.proposer import Proposer

T = TypeVar("T")
MAX_FAULTS = 3
"""After so many a proposer is not asked any more."""
_log = logging.getLogger(__name__)


class Faults:
    """Contains what proposers raise, counts it, and says who is to be asked no more.

    Args:
        name_by_proposer: names for the log, by `id`.
    """

    def __init__(self, name_by_proposer: dict[int, str]) -> None:
        self._name_by_proposer = name_by_proposer
        self._count_by_proposer = dict.fromkeys(name_by_proposer, 0)

    @property
    def count(self) -> int:
        """Faults since start, of all proposers."""
        return sum(self._count_by_proposer.values())

    def is_off(self, proposer: Proposer) -> bool:
        """Whether the proposer failed too often."""
        return self._count_by_proposer[id(proposer)] >= MAX_FAULTS

    def attempt(self, proposer: Proposer, slots: Iterable[int], work: Callable[[], T]) -> T | None:
        """What `work` of a proposer returns; None where it raised.

        The proposer then forgets these slots: what it knows of them may be half of something.
        """
        try:
            return work()
        except Exception:  # noqa: BLE001 - of whatever kind, answers go on
            self._note(proposer)
        for slot in slots:
            try:
                proposer.begin(slot)
            except Exception:  # noqa: BLE001 - as above
                self._note(proposer)
        return None

    def _note(self, proposer: Proposer) -> None:
        """Called where an exception is handled."""
        key = id(proposer)
        name, count = self._name_by_proposer[key], self._count_by_proposer[key] + 1
        self._count_by_proposer[key] = count
        if count == 1:
            _log.exception("making drafts by %s failed; answers go on without them", name)
        if count == MAX_FAULTS:
            _log.error("making drafts by %s failed %d times; it is switched off until a restart", name, count)
