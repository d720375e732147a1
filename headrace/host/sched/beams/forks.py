"""The sequences of beam searches, and how they change places between rounds.

    beams       next beginnings       what happens
    A  B  C     A+x, A+y, B+z         A goes on with x, B with z; C gives its table up and takes A's, with y:
                                      a fork, whose shared block is copied on write

A beam that has its result waits, with its blocks, for the others of its search. One that is preempted
meanwhile computes its tokens again. The sequence that was asked for takes part to the end, in any place.
"""

from dataclasses import dataclass, field, replace

from headrace.base.ids import RequestId
from headrace.base.step import Delta
from headrace.base.tasks import BeamSearch
from headrace.host.kv.keys import KeyChain
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.beams.search import Child, Search
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster
from headrace.host.sched.sequence import Sequence, SequenceState


@dataclass(slots=True, kw_only=True)
class Group:
    """One search; `beams[i]` is the sequence of beginning i."""

    leader: Sequence
    search: Search
    beams: list[Sequence] = field(default_factory=list[Sequence])


class Forks:
    """All beam searches under way. Shares its parts with the scheduler, which is its only user.

    Args:
        ledger: forks tables.
        roster: slots of the beams.
        queue: beams that found no slot wait there.
        sequences: all sequences by name; beams come and go here.
    """

    def __init__(
        self, ledger: KVLedger, roster: Roster, queue: WaitQueue, sequences: dict[RequestId, Sequence]
    ) -> None:
        self._ledger = ledger
        self._roster = roster
        self._queue = queue
        self._sequences = sequences
        self._groups: dict[RequestId, Group] = {}
        """By the name of each beam."""

    def open(self, seq: Sequence) -> int:
        """A new sequence, which may ask for a search; returns how many ranks it needs."""
        task, request = seq.request.task, seq.request
        if not isinstance(task, BeamSearch):
            return 1
        search = Search(
            task=task, num_prompt=seq.num_prompt, max_tokens=seq.max_tokens, end_ids=request.end_ids
        )
        self._groups[seq.request_id] = Group(leader=seq, search=search, beams=[seq])
        return task.width

    def leader_of(self, seq: Sequence) -> Sequence:
        """The sequence that was asked for."""
        return self._groups[seq.request_id].leader

    def close(self, leader: Sequence, now_s: float) -> None:
        """The search is over: its other beams are gone, and so is the group."""
        group = self._groups.pop(leader.request_id)
        for beam in group.beams:
            if beam is not leader:
                self._drop(beam, now_s)

    def advance(self, seq: Sequence, now_s: float) -> Delta | None:
        """A beam has a result: when it was the last of its round, the next round begins.

        Returns:
            The answers, when the search is over.
        """
        group = self._groups[seq.request_id]
        offers = [beam.offer for beam in group.beams if beam.offer is not None]
        if len(offers) < len(group.beams):
            return None
        outputs = [tuple(beam.tokens[beam.num_prompt :]) for beam in group.beams]
        children = group.search.advance(outputs, offers)
        if not children:
            leader = group.leader
            return Delta(
                request_id=leader.request_id,
                cached_tokens=leader.life.cached_tokens,
                beams=tuple(group.search.answers),
            )
        self._regroup(group, children, now_s)
        return None

    # ---- inside ----

    def _regroup(self, group: Group, children: list[Child], now_s: float) -> None:
        """Give every next beginning a sequence: its parent's, one that is left over, or a new one."""
        staying = _staying(group, [parent for parent, _ in children])
        kept = {group.beams[parent] for parent in staying}
        spare = [beam for beam in group.beams if beam not in kept]
        spare.sort(key=lambda beam: beam is group.leader)  # taken from the end
        beams: list[Sequence | None] = [None] * len(children)
        for i, (parent, token) in enumerate(children):
            if staying.get(parent) != i:
                source = group.beams[parent]
                beams[i] = self._fork(group, source, token, spare.pop() if spare else None, now_s)
        for i, (parent, token) in enumerate(children):
            if staying.get(parent) == i:
                beams[i] = self._go_on(group.beams[parent], token)
        for beam in spare:
            self._drop(beam, now_s)
        group.beams = [beam for beam in beams if beam is not None]

    def _go_on(self, beam: Sequence, token: int) -> Sequence:
        """The beam keeps its table; the runner must be told when it drew another token."""
        drawn, beam.offer = beam.offer, None
        beam.tokens.append(token)
        if drawn is None or drawn.token_id != token:
            self._roster.renew(beam)
        return beam

    def _fork(
        self, group: Group, parent: Sequence, token: int, spare: Sequence | None, now_s: float
    ) -> Sequence:
        """A sequence that goes on from the parent's tokens, over the parent's blocks."""
        beam = spare or self._make(group)
        beam.tokens = [*parent.tokens, token]
        beam.offer = None
        beam.chain = KeyChain(parent.chain.domain, self._ledger.block_size, parent.chain.tenant)
        if spare is not None:
            self._ledger.close(beam.request_id)
            self._ledger.fork(parent.request_id, beam.request_id, beam.chain, parent.num_valid)
            beam.num_computed = beam.num_valid = parent.num_valid
            self._roster.renew(beam)
        elif self._roster.has_slot(parent) and not parent.account.is_full:
            self._ledger.fork(parent.request_id, beam.request_id, beam.chain, parent.num_valid)
            self._roster.enter(beam, parent.num_valid)
            beam.rejoins = True
        else:  # as if it had been preempted: the prefix cache has its full blocks
            beam.life.num_preempted = 1
            self._queue.push_preempted(beam, now_s)
        return beam

    def _make(self, group: Group) -> Sequence:
        leader = group.leader
        used = {beam.rank[-1] for beam in self._beams_of(group)}
        first = leader.rank[-1]
        number = next(n for n in range(1, group.search.task.width) if first + n not in used)
        name = RequestId(f"{leader.request_id}\0{number}")  # no caller can give this name
        beam = Sequence(
            replace(leader.request, request_id=name),
            leader.chain,
            (*leader.rank[:-1], first + number),
            leader.life.arrival_s,
            leader.account,
        )
        self._sequences[name], self._groups[name] = beam, group
        return beam

    def _beams_of(self, group: Group) -> list[Sequence]:
        return [self._sequences[name] for name, of in self._groups.items() if of is group]

    def _drop(self, beam: Sequence, now_s: float) -> None:
        if beam.state is SequenceState.RUNNING:
            self._ledger.close(beam.request_id)
            self._roster.leave(beam)
        else:
            self._queue.pop(beam, now_s)
        beam.state = SequenceState.FINISHED
        del self._sequences[beam.request_id], self._groups[beam.request_id]


def _staying(group: Group, parents: list[int]) -> dict[int, int]:
    """Parent -> the child that keeps its sequence: the first of each, as far as the leader finds a place."""
    staying: dict[int, int] = {}
    for child, parent in enumerate(parents):
        staying.setdefault(parent, child)
    leader = group.beams.index(group.leader)
    if leader not in staying and len(staying) == len(parents):
        del staying[parents[-1]]  # its sequence becomes free, and the leader forks from it
    return staying
