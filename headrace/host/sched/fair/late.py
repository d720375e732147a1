"""Who has waited too long: past a deadline of its own, or past the bound of the queue."""

from collections.abc import Iterator

from headrace.host.sched.fair.deadlines import Deadlines
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.sequence import Sequence, Trouble

_LATE: Trouble = ("the request's deadline has passed", "DeadlineError")


def late_ones(
    deadlines: Deadlines, queue: WaitQueue, limits: ScheduleLimits, now_s: float
) -> Iterator[tuple[Sequence, Trouble]]:
    """Who must end now, and why. End each before the next is asked for: nobody comes twice then."""
    for seq in deadlines.take(now_s):
        yield seq, _LATE
    most_s = limits.max_queue_s
    if most_s is None:
        return
    for seq in queue.overdue(now_s - most_s):
        if seq.request_id in queue.held_ids:
            text = f"its grammar was not compiled within schedule.max_queue_s = {most_s:g} s; try again later"
        else:
            text = f"no slot within schedule.max_queue_s = {most_s:g} s; try again later"
        yield seq, (text, "OverloadError")


def next_late_s(deadlines: Deadlines, queue: WaitQueue, limits: ScheduleLimits) -> Iterator[float]:
    """Moments at which somebody is late."""
    oldest_s = queue.oldest_arrival_s
    if limits.max_queue_s is not None and oldest_s is not None:
        yield oldest_s + limits.max_queue_s
    if deadlines.next_s is not None:
        yield deadlines.next_s
