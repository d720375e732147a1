"""Whose grammar is compiled next.

Fair in time: of the tenants that wait, the one whose grammars have taken the least time for its weight. Who
was away is not owed for it (start-time fair queueing, Goyal et al. 1996).
"""

from collections import deque

from headrace.base.messages import AddGroup


class Turns:
    """Groups that wait, by tenant. One thread at a time."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[AddGroup]] = {}
        self._used_s: dict[str, float] = {}
        """Seconds by weight, of every tenant that ever came."""
        self._level_s = 0.0
        """Seconds by weight of the last one whose turn it was."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, group: AddGroup) -> None:
        """Wait behind the groups of the same tenant."""
        name = group.requests[0].terms.tenant.name
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = deque()
            self._used_s[name] = max(self._used_s.get(name, 0.0), self._level_s)
        lane.append(group)

    def take(self) -> AddGroup:
        """Who is next; there must be one."""
        name = min(self._lanes, key=self._used_s.__getitem__)
        lane = self._lanes[name]
        group = lane.popleft()
        if not lane:
            del self._lanes[name]
        self._level_s = self._used_s[name]
        return group

    def charge(self, group: AddGroup, seconds: float) -> None:
        """A group was compiled, which took this long."""
        tenant = group.requests[0].terms.tenant
        self._used_s[tenant.name] += seconds / tenant.weight
