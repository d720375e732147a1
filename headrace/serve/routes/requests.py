"""Requests by their ids: `DELETE` (or `POST …/cancel`) ends one, `GET …/timeline` explains it."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import NotFoundError
from headrace.base.terms import caller_terms
from headrace.engine.timelines.store import spelled
from headrace.serve.described.pages import CancelledRequest
from headrace.serve.described.timings import TimelineFacts
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.schema.timings import timeline_body
from headrace.serve.state import served

ASKED = (401, 404, 500, 503)


async def cancel(request: Request) -> Response:
    """End a request of the same key; its answer ends with finish reason `abort`, soon after this one.

    Raises:
        NotFoundError: this key has no such request; whether another key has one does not show.
    """
    name = request.path_params["name"]
    if not await served(request).running.cancel(name):
        raise NotFoundError(f"no request {name[:100]!r} is running; it may be over", param="id")
    return json_response({"id": name, "object": "request", "cancelled": True})


async def timeline(request: Request) -> Response:
    """Where the time of a request of the same key went: up to now while it runs, and after its end.

    Raises:
        NotFoundError: this key has no such request; whether another key has one does not show.
    """
    name, state = request.path_params["name"], served(request)
    found = await state.llm.timeline(caller_terms().tenant.name, name)
    if found is None:
        raise NotFoundError(
            f"no request {name[:100]!r} is running, nor among the last ones that ended; "
            "--timelines says how many are remembered",
            param="id",
        )
    if state.llm.tokenizer is not None:
        found = spelled(found, partial(state.llm.tokenizer.decode, skip_special=False))
    return json_response(timeline_body(found))


ROUTES = (
    Endpoint("/v1/requests/{name:path}/timeline", timeline, "GET", About(answer=TimelineFacts, errors=ASKED)),
    Endpoint("/v1/requests/{name:path}/cancel", cancel, "POST", About(answer=CancelledRequest)),
    Endpoint("/v1/requests/{name:path}", cancel, "DELETE", About(answer=CancelledRequest)),
)
