"""The timelines of the requests that ended last, each for its tenant only.

The engine's parts come with a request's last delta. Before them comes the time in which its text became
tokens, after them the time until its answer was sent, which the server tells once it knows.
"""

import re
from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from headrace.base.metrics.timeline import Part, PartName, Timeline

Key = tuple[str, str]
"""(tenant, request)."""
_PREFIX = re.compile(r"^[a-z]+[-_]")
"""What endpoints put before a request's name to make the id of its answer."""
_NUMBER = re.compile(r"-\d+$")
"""What `/v1/completions` puts after it, where there are several prompts."""
ANOTHERS = "another tenant's"
"""Stands for the ids of requests that the asker has no right to know."""


class TimelineStore:
    """Remembers the last `limit` requests. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._ended: OrderedDict[Key, Timeline] = OrderedDict()

    def keep(self, tenant: str, timeline: Timeline) -> None:
        """A request ended; the longest-ended one is forgotten when there are too many."""
        if self._limit < 1:
            return
        key = (tenant, timeline.request_id)
        with self._lock:
            self._ended.pop(key, None)
            self._ended[key] = own_view(timeline, tenant)
            if len(self._ended) > self._limit:
                self._ended.popitem(last=False)

    def sent(self, tenant: str, request_id: str, now_s: float) -> None:
        """The whole answer of a request that ended has been sent."""
        with self._lock:
            timeline = self._ended.get((tenant, request_id))
            if timeline is not None:
                self._ended[tenant, request_id] = extended(timeline, now_s)

    def find(self, tenant: str, name: str) -> Timeline | None:
        """The timeline of a request of this tenant, by its id or the name that the client gave it.

        Of an answer made of several requests, the one that ended last.
        """
        with self._lock:
            exact = self._ended.get((tenant, name))
            ids = [] if exact else called(name, [i for owner, i in self._ended if owner == tenant])
            found = [self._ended[tenant, request_id] for request_id in ids]
        return exact or max(found, key=lambda t: t.until_s, default=None)


def called(name: str, request_ids: list[str]) -> list[str]:
    """Those of the requests that a client may call by this name; numbered ones where none is plain."""
    plain = [i for i in request_ids if name in {i, _PREFIX.sub("", i, count=1)}]
    if plain:
        return plain[-1:]
    stems = ((i, _NUMBER.sub("", i)) for i in request_ids if _NUMBER.search(i))
    return [i for i, stem in stems if name in {stem, _PREFIX.sub("", stem, count=1)}]


def begun(timeline: Timeline, request_id: str, begun_s: float) -> Timeline:
    """The timeline of a choice as that of its request, which began before the engine knew of it."""
    seconds = timeline.arrival_s - begun_s
    before = (Part(PartName.TOKENIZE, seconds),) if begun_s and seconds > 0.0 else ()
    arrival_s = begun_s if before else timeline.arrival_s
    return replace(timeline, request_id=request_id, arrival_s=arrival_s, parts=(*before, *timeline.parts))


def extended(timeline: Timeline, now_s: float) -> Timeline:
    """The timeline with the time since its end as that of sending."""
    seconds = now_s - timeline.until_s + timeline.seconds_of(PartName.STREAM_OUT)
    parts = tuple(part for part in timeline.parts if part.name is not PartName.STREAM_OUT)
    if seconds > 0.0:
        parts = (*parts, Part(PartName.STREAM_OUT, seconds))
    return replace(timeline, parts=parts, until_s=max(now_s, timeline.until_s))


def own_view(timeline: Timeline, tenant: str) -> Timeline:
    """The timeline without the ids of other tenants' requests."""
    others = tuple(o if o.tenant == tenant else o._replace(request_id=ANOTHERS) for o in timeline.others)
    most = others[0].request_id if others else ""
    parts = tuple(
        part._replace(reason=most) if part.name is PartName.OTHERS_PREFILL else part
        for part in timeline.parts
    )
    return replace(timeline, parts=parts, others=others)
