"""The ASGI application: routes found by their files, errors in one shape, the key in front."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from headrace.base.config import AccessConfig, ServeConfig
from headrace.base.errors import HeadraceError
from headrace.base.registry import Registry
from headrace.engine.async_llm import AsyncLLM
from headrace.serve.faults import fault_response, on_headrace_error, on_http_exception
from headrace.serve.front.gate import Gate
from headrace.serve.front.keys import load_keys
from headrace.serve.metrics import ServerMetrics
from headrace.serve.state import Served, served

ROUTE_FILES: Registry[tuple[BaseRoute, ...]] = Registry("endpoint", "headrace.serve.routes", "ROUTES")


def build_app(
    llm: AsyncLLM, config: ServeConfig, access: AccessConfig | None = None
) -> tuple[ASGIApp, Served]:
    """The application that serves an engine, and its state.

    Args:
        llm: a started engine; it is not closed here.
        config: the server's settings.
        access: who may use it; with keys, every path but the probes needs one.

    Raises:
        ConfigError: the keys cannot be used.
    """
    state = Served(llm=llm, config=config, metrics=ServerMetrics())
    app = Starlette(
        routes=[route for routes in ROUTE_FILES.all().values() for route in routes],
        exception_handlers={
            HeadraceError: _counted,
            HTTPException: on_http_exception,
            Exception: on_headrace_error,
        },
    )
    app.state.served = state
    return Gate(app, load_keys(access or AccessConfig())), state


async def _counted(request: Request, error: Exception) -> Response:
    if not isinstance(error, HeadraceError):
        return await on_headrace_error(request, error)
    served(request).metrics.refused.labels(error.code).inc()
    return fault_response(error, request.url.path)
