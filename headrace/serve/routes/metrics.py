"""`GET /metrics`: Prometheus text."""

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import HeadraceError
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.state import served

STATS_TIMEOUT_S = 2.0


async def metrics(request: Request) -> Response:
    """What the server saw, and the engine's numbers; the latest known ones when it does not answer."""
    state = served(request)
    stats = None
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            stats = await state.llm.stats()
    except (TimeoutError, HeadraceError):
        stats = None
    state.metrics.note_health(state.llm.health(), state.llm.num_restarts)
    return Response(state.metrics.render(stats), media_type=CONTENT_TYPE_LATEST)


ROUTES = (Endpoint("/metrics", metrics, "GET", About(media_type="text/plain", errors=(401, 500))),)
