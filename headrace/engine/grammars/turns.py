"""Whose grammar is compiled next.

Fair in time: of the tenants that wait, the one whose grammars have taken the least time for its weight. Who
was away is not owed for it (start-time fair queueing, Goyal et al. 1996). Grammars of the background come
after all others.
"""

from collections import deque

from headrace.base.messages import AddGroup

Lane = tuple[bool, str]
"""Whether it is of the background, and the tenant."""


class Turns:
    """Groups that wait. One thread at a time."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[AddGroup]] = {}
        self._used_s: dict[Lane, float] = {}
        """Seconds by weight, of every tenant that ever came."""
        self._level_s = {False: 0.0, True: 0.0}
        """Seconds by weight of the last one whose turn it was, apart for the background."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, group: AddGroup) -> None:
        """Wait behind the groups of the same tenant."""
        key = _lane_of(group)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            self._used_s[key] = max(self._used_s.get(key, 0.0), self._level_s[key[0]])
        lane.append(group)

    def take(self) -> AddGroup:
        """Who is next; there must be one."""
        key = min(self._lanes, key=lambda key: (key[0], self._used_s[key]))
        lane = self._lanes[key]
        group = lane.popleft()
        if not lane:
            del self._lanes[key]
        self._level_s[key[0]] = self._used_s[key]
        return group

    def charge(self, group: AddGroup, seconds: float) -> None:
        """A group was compiled, which took this long."""
        self._used_s[_lane_of(group)] += seconds / group.requests[0].terms.tenant.weight


def _lane_of(group: AddGroup) -> Lane:
    terms = group.requests[0].terms
    return terms.is_background, terms.tenant.name
