"""`GET /doctor`: what holds the server up now."""

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.described.pages import Diagnosis
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.pages.doctor import Doctor


async def doctor(request: Request) -> Response:
    """What holds the server up now, with the numbers that prove it and what attacks it."""
    return json_response(await cast("Doctor", request.app.state.doctor).examine())


ROUTES = (Endpoint("/doctor", doctor, "GET", About(answer=Diagnosis, errors=(401, 500, 503))),)
