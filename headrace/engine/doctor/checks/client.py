"""Requests wait for their clients: bodies come late, or what is made is not read."""

from headrace.engine.doctor.checks._front import FULL, front_cores
from headrace.engine.doctor.finding import Check, Finding, Patient

_SHARE_ABOVE = 0.5
_LEAST_OPEN = 0.5
"""Requests that are open on average: one slow client now and then holds nothing up."""


def _look(patient: Patient) -> Finding | None:
    trace = patient.trace
    if trace is None or front_cores(trace) >= FULL:
        return None  # the HTTP process itself is what is slow
    bodies, unread = (trace.share(f"headrace_http_{name}_seconds_total") for name in ("body_wait", "unread"))
    requests = max(trace.share("headrace_http_request_seconds_total"), bodies + unread)
    if requests < _LEAST_OPEN or bodies + unread < _SHARE_ABOVE * requests:
        return None
    share = (bodies + unread) / requests
    is_sending = bodies > unread
    return Finding(
        name="network/client",
        severity="bottleneck",
        evidence={
            "requests_open": requests,
            "waiting_for_bodies": bodies,
            "waiting_for_readers": unread,
            "engine_busy_share": trace.busy,
        },
        remedy="requests come in slowly: look at the network, at proxies, and at clients that send their "
        "body in small pieces"
        if is_sending
        else "clients read slower than tokens are made: look at the network, proxies that buffer, and what "
        "the clients do with each event",
        expected_gain=f"{100 * share:.0f} % of the time of requests",
        weight=0.75 + 0.2 * share,
    )


CHECK = Check(_look)
