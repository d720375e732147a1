"""`GET /openapi.json`: the description of this API."""

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.described.pages import OpenApi
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.openapi import describe
from headrace.serve.state import served


async def openapi(request: Request) -> Response:
    """The description of this API, made from its routes."""
    state = served(request)
    if state.description is None:  # routes do not change, and making it takes a while
        state.description = describe(route for route in request.app.routes if isinstance(route, Endpoint))
    return json_response(state.description)


ROUTES = (Endpoint("/openapi.json", openapi, "GET", About(answer=OpenApi)),)
