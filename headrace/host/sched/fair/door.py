"""Who may queue up: the queue is bounded, and nobody can fill it for others.

When it is full, a tenant that has less than an equal part of it still gets in: whoever waits last of the
tenant that has most of it must leave ("longest queue drop", as in McKenney's stochastic fair queueing).
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from headrace.base.errors import OverloadError
from headrace.base.request import Request
from headrace.host.sched.admission import AdmissionRate
from headrace.host.sched.fair.account import Account
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Door:
    """The door as one tenant finds it. Requests that will find a free slot do not count as queued.

    The background has a queue as long as the others' for itself: it displaces nobody, and nobody is refused
    for it. It may wait whatever its tenant's `max_queued` and tokens a minute are.
    """

    queue: WaitQueue
    account: Account
    free_slots: int
    limits: ScheduleLimits
    rate: AdmissionRate

    def enter(self, requests: Seq[Request], now_s: float) -> list[Sequence]:
        """Check that the choices of one API request may queue up; who must leave for them.

        Raises:
            OverloadError: they may not; with the seconds after which there should be room.
        """
        tokens = sum(len(r.prompt_ids) for r in requests if r.leader is None)
        if requests[0].terms.is_background:
            self._check_background(len(requests), tokens)
            return []
        self._check_own(len(requests))
        leaving = self._make_room(len(requests), tokens)
        self.account.check_allowance(now_s)
        self.account.spend(tokens)
        return leaving

    def _check_own(self, num: int) -> None:
        tenant = self.account.tenant
        if tenant.max_queued is None:
            return
        free = self.free_slots
        if tenant.max_running is not None:
            stay = self.account.num_running - self.account.num_background
            free = min(free, tenant.max_running - stay)
        over = self.account.num_waiting + num - max(0, free) - tenant.max_queued
        if over > 0:
            raise OverloadError(
                f"{self.account.num_waiting} requests of {tenant.name!r} wait, at most {tenant.max_queued} "
                "may (max_queued of its key); try again later",
                retry_after_s=self.rate.retry_after_s(over, 0),
            )

    def _check_background(self, num: int, tokens: int) -> None:
        queue, limits = self.queue, self.limits
        over = queue.num_background + num - limits.max_queued_requests
        over_tokens = queue.background_tokens + tokens - limits.max_queued_tokens
        if queue.num_background and max(over, over_tokens) > 0:
            raise OverloadError(
                f"{queue.num_background} background requests with {queue.background_tokens} prompt tokens "
                f"wait, at most {limits.max_queued_requests} (schedule.max_queued_requests) with "
                f"{limits.max_queued_tokens} (schedule.max_queued_tokens) may; try again later",
                retry_after_s=self.rate.retry_after_s(max(over, 0), max(over_tokens, 0)),
            )

    def _make_room(self, num: int, tokens: int) -> list[Sequence]:
        over, over_tokens = self._over(num, tokens)
        if over <= 0 and over_tokens <= 0:
            return []
        leaving = self._who_leaves(num, tokens, over, over_tokens)
        if leaving is not None:
            return leaving
        queue, limits = self.queue, self.limits
        if over > 0:
            raise OverloadError(
                f"{queue.num_foreground} requests wait, at most {limits.max_queued_requests} may "
                "(schedule.max_queued_requests); try again later",
                retry_after_s=self.rate.retry_after_s(over, 0),
            )
        raise OverloadError(
            f"{queue.num_tokens} prompt tokens wait and {tokens} more came, "
            f"at most {limits.max_queued_tokens} may wait (schedule.max_queued_tokens); try again later",
            retry_after_s=self.rate.retry_after_s(0, over_tokens),
        )

    def _over(self, num: int, tokens: int) -> tuple[int, int]:
        """Sequences and prompt tokens above the bounds."""
        queue, limits = self.queue, self.limits
        over = queue.num_foreground + num - self.free_slots - limits.max_queued_requests
        over_tokens = queue.num_tokens + tokens - limits.max_queued_tokens
        return over, over_tokens if queue.num_foreground >= self.free_slots else 0

    def _who_leaves(self, num: int, tokens: int, over: int, over_tokens: int) -> list[Sequence] | None:
        """Sequences of the longest lane that make room, its last ones; None: these have no claim to it."""
        lanes, name = self.queue.lanes(), self.account.tenant.name
        if not lanes:
            return None
        lane, own = max(lanes.values(), key=len), lanes.get(name, [])
        parts = len(lanes) + int(not own)
        limits = self.limits
        if lane[0].account is self.account or parts < 2:
            return None
        if self.account.num_waiting + num > limits.max_queued_requests // parts:
            return None
        own_tokens = sum(s.num_prompt for s in own if s.leader is None)
        if over_tokens > 0 and own_tokens + tokens > limits.max_queued_tokens // parts:
            return None
        leaving: list[Sequence] = []
        for seq in reversed(lane):
            if len(leaving) >= over and over_tokens <= 0:
                break
            leaving.append(seq)
            over_tokens -= seq.num_prompt if seq.leader is None else 0
        return leaving if len(leaving) >= over and over_tokens <= 0 else None
