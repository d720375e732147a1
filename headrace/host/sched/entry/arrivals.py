"""Requests become sequences that wait."""

from collections.abc import Sequence as Seq

from headrace.base.errors import RequestError
from headrace.base.ids import RequestId
from headrace.base.request import Request
from headrace.host.kv.keys import Domain, KeyChain
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.admission import AdmissionRate, check_request
from headrace.host.sched.beams.forks import Forks
from headrace.host.sched.fair.account import Accounts
from headrace.host.sched.fair.door import Door
from headrace.host.sched.fair.rank import rank_of
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.sequence import Sequence, WaitReason


class Arrivals:
    """Checks the choices of API requests and makes their sequences. Shares its parts with the scheduler.

    Args:
        sequences: those that are not finished, by name; new ones are put there.
        ledger: how much fits.
        queue: where new ones wait.
        forks: beam searches begin there.
        limits: bounds.
    """

    def __init__(
        self,
        sequences: dict[RequestId, Sequence],
        ledger: KVLedger,
        queue: WaitQueue,
        forks: Forks,
        limits: ScheduleLimits,
    ) -> None:
        self._sequences = sequences
        self._ledger = ledger
        self._queue = queue
        self._forks = forks
        self._limits = limits
        self._accounts = Accounts()
        self._num_arrived = 0

    def check(
        self, requests: Seq[Request], free_slots: int, rate: AdmissionRate, now_s: float
    ) -> list[Sequence]:
        """Whether all of these may queue up; who must leave for them. Raises as `Scheduler.add_group`."""
        names = {r.request_id for r in requests}
        if len(names) < len(requests) or not names.isdisjoint(self._sequences):
            raise RequestError(f"request id in use: {', '.join(sorted(names))}", param="request_id")
        for request in requests:
            check_request(request, self._ledger, self._limits)
        account = self._accounts.of(requests[0].terms.tenant, now_s)
        return Door(self._queue, account, free_slots, self._limits, rate).enter(requests, now_s)

    def enter(self, request: Request, now_s: float, *, is_held: bool) -> Sequence:
        """The sequence of a request that was checked; it waits now."""
        arrival_s = min(request.arrival_s, now_s) if request.arrival_s > 0.0 else now_s
        account = self._accounts.of(request.terms.tenant, now_s)
        rank = rank_of(request, now_s, self._num_arrived, self._limits.ageing_s)
        chain = KeyChain(Domain.of(request), self._ledger.block_size, account.tenant.name)
        seq = Sequence(request, chain, rank, arrival_s, account)
        seq.life.waits[WaitReason.STEP] = now_s - arrival_s
        self._num_arrived += self._forks.open(seq)
        self._sequences[request.request_id] = seq
        seq.leader = self._leader_of(seq)
        (self._queue.hold if is_held else self._queue.push)(seq, now_s)
        return seq

    def _leader_of(self, seq: Sequence) -> Sequence | None:
        """The sequence whose prompt blocks this one can share (not when it needs their log-probs)."""
        request = seq.request
        leader = self._sequences.get(request.leader) if request.leader is not None else None
        if leader is None or leader is seq or request.sampling.prompt_logprobs is not None:
            return None
        is_same = leader.request.prompt_ids == request.prompt_ids and leader.chain.domain == seq.chain.domain
        return leader if is_same else None
