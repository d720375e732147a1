"""`GET /openapi.json`: the description of this API."""

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.described.pages import OpenApi
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.openapi import describe


async def openapi(request: Request) -> Response:
    """The description of this API, made from its routes."""
    return json_response(describe(route for route in request.app.routes if isinstance(route, Endpoint)))


ROUTES = (Endpoint("/openapi.json", openapi, "GET", About(answer=OpenApi)),)
