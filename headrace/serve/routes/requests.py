"""`DELETE /v1/requests/{id}` and `POST /v1/requests/{id}/cancel`: end a request by its id."""

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import NotFoundError
from headrace.serve.described.pages import CancelledRequest
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.state import served


async def cancel(request: Request) -> Response:
    """End a request of the same key; its answer ends with finish reason `abort`, soon after this one.

    Raises:
        NotFoundError: this key has no such request; whether another key has one does not show.
    """
    name = request.path_params["name"]
    if not await served(request).running.cancel(name):
        raise NotFoundError(f"no request {name[:100]!r} is running; it may be over", param="id")
    return json_response({"id": name, "object": "request", "cancelled": True})


ROUTES = (
    Endpoint("/v1/requests/{name:path}/cancel", cancel, "POST", About(answer=CancelledRequest)),
    Endpoint("/v1/requests/{name:path}", cancel, "DELETE", About(answer=CancelledRequest)),
)
