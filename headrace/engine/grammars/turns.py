"""Whose grammar is compiled next.

Fair in time: of the tenants that wait, the one whose grammars have taken the least time for its weight. Who
was away is not owed for it (start-time fair queueing, Goyal et al. 1996). Grammars of the background come
after all others.
"""

from collections import deque

from headrace.base.messages import AddGroup

MAX_REMEMBERED = 1024
"""Most tenants whose time is remembered while they have nothing here; who has used least is forgotten."""

Lane = tuple[bool, str]
"""Whether it is of the background, and the tenant."""


class Turns:
    """Groups that wait. One thread at a time."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[AddGroup]] = {}
        self._used_s: dict[Lane, float] = {}
        """Seconds by weight, of tenants that wait and of those that used more than others."""
        self._level_s = {False: 0.0, True: 0.0}
        """Seconds by weight of the last one whose turn it was, apart for the background."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    @property
    def num_remembered(self) -> int:
        """Tenants whose time is remembered."""
        return len(self._used_s)

    def put(self, group: AddGroup) -> None:
        """Wait behind the groups of the same tenant."""
        self._lane(group).append(group)

    def put_back(self, group: AddGroup) -> None:
        """Wait again, for more, before the groups of the same tenant."""
        self._lane(group).appendleft(group)

    def remove(self, group: AddGroup) -> None:
        """Wait no longer, if it does."""
        key = _lane_of(group)
        left = deque(other for other in self._lanes.get(key, ()) if other is not group)
        if left:
            self._lanes[key] = left
        else:
            self._lanes.pop(key, None)

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
        self._used_s[_lane_of(group)] = self._used_by(group) + seconds / group.requests[0].terms.tenant.weight

    def _lane(self, group: AddGroup) -> deque[AddGroup]:
        key = _lane_of(group)
        if key not in self._lanes:
            if len(self._used_s) > MAX_REMEMBERED:
                self._forget()
            self._used_s[key] = self._used_by(group)
            self._lanes[key] = deque()
        return self._lanes[key]

    def _used_by(self, group: AddGroup) -> float:
        key = _lane_of(group)
        return max(self._used_s.get(key, 0.0), self._level_s[key[0]])

    def _forget(self) -> None:
        """Forget the half of those absent who used least, who lose nothing where they are at the level."""
        gone = sorted(self._used_s.keys() - self._lanes.keys(), key=lambda key: self._used_s[key])
        for key in gone[: (len(gone) + 1) // 2]:
            del self._used_s[key]


def _lane_of(group: AddGroup) -> Lane:
    terms = group.requests[0].terms
    return terms.is_background, terms.tenant.name
