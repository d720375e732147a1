"""Give every value a place in one arena; values whose lives do not meet share memory.

First fit over the free gaps, in order of first use. A life runs from the first to the last node that touches
the value, both included, so no node reads what it overwrites by accident.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

ALIGN = 64


@dataclass(slots=True)
class Life:
    """First and last node index at which something is needed, and its size in bytes."""

    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Byte offset of each thing and the size of the arena."""

    offsets: dict[Hashable, int]
    size: int


def lives(touches: Iterable[Iterable[Hashable]], size_of: Callable[[Hashable], int]) -> dict[Hashable, Life]:
    """Lives of everything that the nodes touch, node by node."""
    found: dict[Hashable, Life] = {}
    for i, things in enumerate(touches):
        for thing in things:
            if thing in found:
                found[thing].last = i
            else:
                found[thing] = Life(i, i, -(-size_of(thing) // ALIGN) * ALIGN)
    return found


def plan(found: dict[Hashable, Life]) -> Plan:
    """Place everything; offsets are multiples of 64."""
    offsets: dict[Hashable, int] = {}
    placed: list[tuple[int, Life]] = []
    top = 0
    for thing, life in sorted(found.items(), key=lambda item: item[1].first):
        near = sorted(((o, x) for o, x in placed if x.last >= life.first), key=lambda item: item[0])
        offset = 0
        for start, other in near:
            if offset + life.size <= start:
                break
            offset = max(offset, start + other.size)
        offsets[thing] = offset
        placed = [*near, (offset, life)]
        top = max(top, offset + life.size)
    return Plan(offsets, top)
