"""`GET /health`, `/ready`, `/version`: answered from the step counter, never by waiting for the engine."""

from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.serve.described.pages import State, Version
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.state import served


async def health(request: Request) -> Response:
    """200 while the engine lives and makes progress, however busy it is; else 503."""
    state = served(request).llm.health()
    good = state.alive and state.making_progress
    return json_response(
        {"status": "ok" if good else "failing", "reason": "" if good else state.reason}, 200 if good else 503
    )


async def ready(request: Request) -> Response:
    """200 while new requests are admitted; else 503."""
    state = served(request)
    found = state.llm.health()
    if state.draining:
        return json_response({"status": "stopping", "reason": "the server is stopping"}, 503)
    good = found.alive and found.making_progress and found.ready
    return json_response(
        {"status": "ready" if good else "not ready", "reason": "" if good else found.reason},
        200 if good else 503,
    )


async def version(request: Request) -> Response:
    """The version of Headrace."""
    del request
    return json_response({"version": __version__})


PROBE = About(answer=State, also=(503,), errors=())
ROUTES = (
    Endpoint("/health", health, "GET", PROBE),
    Endpoint("/ready", ready, "GET", PROBE),
    Endpoint("/version", version, "GET", About(answer=Version)),
)
