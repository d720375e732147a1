"""Priorities with ageing, as numbers that never change.

A level of priority is worth some seconds of waiting. As everybody ages alike, "priority less time waited"
orders any two sequences the same way at every moment, so the order can be fixed on arrival: the moment of
arrival, moved by the priority. What clients ask for moves it by a bounded time, so nobody starves: whoever
arrives later than twice that bound comes after. The background ranks behind all others and never ages into
their ranks.
"""

from headrace.base.request import Request

Rank = tuple[bool, float, int]
"""(background, arrival moved by priority in seconds, number of arrival): lower runs first and is preempted
last."""
MOST_LEVELS = 30.0
"""What the best priority of a client is worth, in levels."""


def rank_of(request: Request, now_s: float, number: int, ageing_s: float) -> Rank:
    """The rank of a request that arrives now as number `number`."""
    levels = request.terms.tenant.priority + levels_of(request.priority)
    return request.terms.is_background, now_s + ageing_s * levels, number


def levels_of(priority: int) -> float:
    """A client's priority in levels: the first counts whole, all together less than `MOST_LEVELS`."""
    return MOST_LEVELS * priority / (MOST_LEVELS - 1 + abs(priority))
