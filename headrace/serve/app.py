"""The ASGI application: routes found by their files, errors in one shape, the key in front."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from headrace.base.config import EngineConfig
from headrace.base.errors import HeadraceError, OverloadError
from headrace.base.registry import Registry
from headrace.engine.async_llm import AsyncLLM
from headrace.serve.batches.call import Border
from headrace.serve.batches.store import Store
from headrace.serve.batches.worker import Worker
from headrace.serve.faults import on_headrace_error, on_http_exception
from headrace.serve.front.gate import Gate
from headrace.serve.front.keys import Keys, load_keys
from headrace.serve.front.log import write_line
from headrace.serve.front.record import Recorder, Report
from headrace.serve.front.traces import open_traces
from headrace.serve.limits import discard_body
from headrace.serve.metrics import ServerMetrics
from headrace.serve.pages.doctor import Doctor
from headrace.serve.pages.feed import Feed
from headrace.serve.state import Served, served

ROUTE_FILES: Registry[tuple[BaseRoute, ...]] = Registry("endpoint", "headrace.serve.routes", "ROUTES")


def build_app(llm: AsyncLLM, config: EngineConfig) -> tuple[ASGIApp, Served]:
    """The application that serves an engine, and its state.

    Args:
        llm: a started engine; it is not closed here.
        config: the settings; with keys, every path but the probes needs one.

    Raises:
        ConfigError: the keys cannot be used, or a package is missing.
    """
    state = Served(llm=llm, config=config.serve, metrics=ServerMetrics())
    state.metrics.in_process.set(config.serve.in_process)
    state.metrics.tell_settings(llm.resolved.settings)
    app = Starlette(
        routes=[route for routes in ROUTE_FILES.all().values() for route in routes],
        exception_handlers={
            HeadraceError: _counted,
            HTTPException: _routeless,
            Exception: on_headrace_error,
        },
    )
    app.state.served = state
    keys = load_keys(config.access)
    app.state.doctor = Doctor(state)
    app.state.feed = Feed(state, app.state.doctor, is_shared=len(keys) > 1)
    if config.batch.dir is not None:
        store = Store(Path(config.batch.dir), config.batch)
        counted = Recorder(app, [state.metrics.count_tokens], with_body=False)
        border = Border(tenant_of=keys.tenant, admit=state.admit, num_restarts=lambda: state.llm.num_restarts)
        state.batches = Worker(counted, store, config.batch, border)
    return _fronted(app, state, config, keys), state


def _fronted(app: Starlette, state: Served, config: EngineConfig, keys: Keys) -> ASGIApp:
    """The application behind the gate, with CORS before it (preflights bring no key), the recorder first."""
    gated: ASGIApp = Gate(state.metrics.waits.around(app), keys)
    origins = config.access.cors_origins
    if origins:
        gated = CORSMiddleware(
            gated,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("retry-after", "x-request-id"),
        )
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    reports: list[Report] = [lambda record: state.metrics.report(record, paths), state.note_sent]
    observe = config.observe
    if observe.access_log:
        reports.append(write_line)
    if observe.otlp_endpoint:
        traces = open_traces(observe.otlp_endpoint)
        state.at_end.append(traces.close)
        reports.append(traces.report)
    return Recorder(gated, reports, with_body=observe.access_log and observe.log_prompts)


async def _routeless(request: Request, error: Exception) -> Response:
    await discard_body(request)
    return await on_http_exception(request, error)


async def _counted(request: Request, error: Exception) -> Response:
    if isinstance(error, HeadraceError):
        metrics = served(request).metrics
        metrics.refused.labels(error.code).inc()
        if isinstance(error, OverloadError):
            metrics.rejections.labels(error.code).inc()
        await discard_body(request)
    return await on_headrace_error(request, error)
