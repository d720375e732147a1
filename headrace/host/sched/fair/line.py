"""The line of those who never ran: by tenant, and in each by rank.

Between tenants of the same priority, the one that was served least for its weight is next. Between
priorities, the one whose first has waited longest is next, where a level is worth some seconds.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Seq

from headrace.base.errors import InvariantError
from headrace.host.sched.fair.account import Account
from headrace.host.sched.fair.rank import Rank
from headrace.host.sched.sequence import Sequence


class FairLine:
    """Waiting sequences, all of the background or none.

    Args:
        ageing_s: seconds of waiting that a level of a tenant's priority is worth.
    """

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._lanes: dict[str, list[Sequence]] = {}
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Sequence]:
        for lane in self._lanes.values():
            yield from lane

    @property
    def lanes(self) -> Mapping[str, list[Sequence]]:
        """The sequences by tenant, in order. Do not change them."""
        return self._lanes

    def add(self, seq: Sequence) -> None:
        """Queue up. Who comes back from a pause is not owed for it: its count rises to the others'."""
        name = seq.account.tenant.name
        lane = self._lanes.get(name)
        if lane is None:
            if self._lanes:
                kind, served = seq.is_background, seq.account.served
                served[kind] = max(served[kind], min(a.served[kind] for a in self._accounts()))
            lane = self._lanes[name] = []
        insort(lane, seq, key=_rank)
        self._len += 1

    def remove(self, seq: Sequence) -> None:
        """Leave the line, from any place.

        Raises:
            InvariantError: it is not in it.
        """
        name = seq.account.tenant.name
        lane = self._lanes.get(name, [])
        cut(lane, seq)
        self._len -= 1
        if not lane:
            del self._lanes[name]

    def pick(self, passed: Seq[Sequence] = (), barred: Collection[str] = ()) -> Sequence | None:
        """The next one after those in `passed` (picked before, in order), of no tenant in `barred`."""
        if len(self._lanes) == 1 and not barred:
            (lane,) = self._lanes.values()
            return lane[len(passed)] if len(passed) < len(lane) else None
        heads: list[Sequence] = []
        for name, lane in self._lanes.items():
            i = sum(s.account.tenant.name == name for s in passed)
            if i < len(lane) and name not in barred:
                heads.append(lane[i])
        return self._best(heads) if heads else None

    def check(self) -> None:
        """Order and count.

        Raises:
            InvariantError: something does not add up.
        """
        for name, lane in self._lanes.items():
            ranks = [s.rank for s in lane]
            if ranks != sorted(set(ranks)) or not lane:
                raise InvariantError(f"the queue of {name!r} is out of order: {ranks}")
            if any(s.account is not lane[0].account for s in lane):
                raise InvariantError(f"the queue of {name!r} holds sequences of others")
        if self._len != sum(map(len, self._lanes.values())):
            raise InvariantError("the queue's length is wrong")

    def _accounts(self) -> Iterator[Account]:
        return (lane[0].account for lane in self._lanes.values())

    def _best(self, heads: list[Sequence]) -> Sequence:
        classes: dict[int, list[Sequence]] = {}
        for seq in heads:
            classes.setdefault(seq.account.tenant.priority, []).append(seq)
        chosen = min(classes.items(), key=self._moment)[1]
        return min(chosen, key=lambda s: (s.account.served[s.is_background], s.rank))

    def _moment(self, item: tuple[int, list[Sequence]]) -> float:
        """When the first of a class came, moved by its priority."""
        return item[0] * self._ageing_s + min(s.life.arrival_s for s in item[1])


def cut(line: list[Sequence], seq: Sequence) -> None:
    """Take a sequence out of a list that is in the order of ranks.

    Raises:
        InvariantError: it is not in it.
    """
    i = bisect_left(line, seq.rank, key=_rank)
    if i >= len(line) or line[i] is not seq:
        raise InvariantError(f"request {seq.request_id!r} is not where it should wait")
    del line[i]


def _rank(seq: Sequence) -> Rank:
    return seq.rank
