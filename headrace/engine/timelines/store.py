"""The timelines of the requests that ended last, each for its tenant only.

The engine's parts come with a request's last delta. Before them comes the time in which its text became
tokens, after them the time until its answer was sent, which the server tells once it knows.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from headrace.base.ids import outer_id
from headrace.base.metrics.timeline import Part, PartName, Timeline

_log = logging.getLogger(__name__)
Key = tuple[str, str]
"""(tenant, request)."""
_PREFIX = re.compile(r"^[a-z]+[-_]")
"""What endpoints put before a request's name to make the id of its answer."""
ANOTHERS = "another tenant's"
"""Stands for the ids of requests that the asker has no right to know."""


class Kept(NamedTuple):
    """What is remembered of a request."""

    packed: bytes
    """Its timeline in MessagePack: a fifth of the objects' memory, and most are never asked for."""
    part_of: str
    """Id of the answer to several requests of which it was one; empty: it was an answer by itself."""

    @property
    def timeline(self) -> Timeline:
        """What is packed."""
        from headrace.engine.timelines.packed import unpack  # noqa: PLC0415 - as `pack`

        return unpack(self.packed)

    def now(self, timeline: Timeline) -> "Kept":
        """The same request with another timeline."""
        return self._replace(packed=_packed(timeline))


class TimelineStore:
    """Remembers the last `limit` requests. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._ended: OrderedDict[Key, Kept] = OrderedDict()

    def keep(self, tenant: str, timeline: Timeline, part_of: str = "") -> None:
        """A request ended; the longest-ended one is forgotten when there are too many.

        Never raises: one that cannot be packed is logged and not kept, since its answer is handed over next.
        """
        if self._limit < 1:
            return
        key = (tenant, timeline.request_id)
        try:
            packed = _packed(own_view(timeline, tenant))
        except Exception as error:  # noqa: BLE001 - a record must cost nobody the answer
            _log.warning("the timeline of request %r is not kept: %s", timeline.request_id, error)
            packed = None
        with self._lock:
            self._ended.pop(key, None)
            if packed is None:
                return
            self._ended[key] = Kept(packed, part_of)
            if len(self._ended) > self._limit:
                self._ended.popitem(last=False)

    def sent(self, tenant: str, request_id: str, now_s: float) -> None:
        """The whole answer of a request that ended has been sent."""
        with self._lock:
            kept = self._ended.get((tenant, request_id))
            if kept is not None:
                self._ended[tenant, request_id] = kept.now(extended(kept.timeline, now_s))

    def find(self, tenant: str, name: str) -> Timeline | None:
        """The timeline of a request of this tenant, by its id or the name that the client gave it.

        Of an answer made of several requests, the one that ended last.
        """
        with self._lock:
            exact = self._ended.get((tenant, name))
            if exact is not None:
                return exact.timeline
            own = {i: kept.part_of for (owner, i), kept in self._ended.items() if owner == tenant}
            found = [self._ended[tenant, request_id].timeline for request_id in called(name, own)]
        return max(found, key=lambda t: t.until_s, default=None)


def _packed(timeline: Timeline) -> bytes:
    from headrace.engine.timelines.packed import pack  # noqa: PLC0415 - programs that serve nobody load no msgspec

    return pack(timeline)


def called(name: str, requests: Mapping[str, str]) -> list[str]:
    """Those of the requests that a client may call by this name; parts of an answer where none is plain.

    Args:
        name: an id, or what the client called it.
        requests: ids of requests, each with the answer to several requests that it is part of, or "".
    """
    plain = [i for i in requests if _is_called(i, name)]
    return plain[-1:] or [i for i, whole in requests.items() if whole and _is_called(whole, name)]


def _is_called(answer_id: str, name: str) -> bool:
    return answer_id.endswith(name) and name in {answer_id, _PREFIX.sub("", answer_id, count=1)}


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


def spelled(timeline: Timeline, decode: Callable[[Sequence[int]], str]) -> Timeline:
    """The timeline with the text around the token in which the prompt differs from a cached one."""
    differs = None if timeline.prefix is None else timeline.prefix.differs
    if timeline.prefix is None or differs is None:
        return timeline
    texts = (decode(differs.before), decode(differs.own), decode(differs.cached))
    return replace(timeline, prefix=replace(timeline.prefix, differs=differs._replace(texts=texts)))


def own_view(timeline: Timeline, tenant: str) -> Timeline:
    """The timeline without the ids of other tenants' requests, and with this tenant's as it knows them."""
    others = tuple(
        o._replace(request_id=outer_id(o.request_id) if o.tenant == tenant else ANOTHERS)
        for o in timeline.others
    )
    most = others[0].request_id if others else ""
    parts = tuple(
        part._replace(reason=most) if part.name is PartName.OTHERS_PREFILL else part
        for part in timeline.parts
    )
    return replace(timeline, parts=parts, others=others)
