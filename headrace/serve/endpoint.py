"""A route that says what it takes and gives: the description of the API is made from it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.serve.schema.support import StrictBody

GENERATES = (400, 401, 404, 408, 413, 429, 500, 503, 504)
"""Errors of endpoints that ask the engine."""
READS = (400, 401, 404, 408, 413, 500)
"""Errors of endpoints that take a body and do not ask the engine."""
ASKS = (401, 404, 500)
"""Errors of endpoints without a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What an endpoint takes and gives."""

    body: type[StrictBody] | None = None
    """Model of the JSON body; None: there is none."""
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Fields that pass with these values only (`schema/support`)."""
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Schemas of the parameters behind the question mark."""
    answer: type[BaseModel] | None = None
    """Model of the JSON answer; None: the answer is `media_type`."""
    media_type: str = "application/json"
    streams: bool = False
    """The answer is a stream of server-sent events when the body says `stream`."""
    errors: tuple[int, ...] = ASKS
    """Statuses of errors."""
    also: tuple[int, ...] = ()
    """Statuses other than 200 with the same answer."""


class Endpoint(Route):
    """A route with one method and a description.

    Args:
        path: as Starlette takes it.
        handler: answers; its docstring's first line is the summary.
        method: GET, POST or DELETE.
        about: what it takes and gives.
    """

    def __init__(
        self, path: str, handler: Callable[[Request], Awaitable[Response]], method: str, about: About
    ) -> None:
        super().__init__(path, handler, methods=[method])
        self.method = method
        self.summary = (handler.__doc__ or "").strip().splitlines()[0]
        self.about = about
