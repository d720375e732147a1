"""`GET /dashboard`: one self-contained page; `GET /dashboard/events`: what it shows, as events."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from functools import cache
from importlib import resources
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.terms import caller_terms
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.pages.feed import Feed
from headrace.serve.stream import EventStream, event


@cache
def _page() -> tuple[bytes, dict[str, str]]:
    """The page, and headers that let nothing run or load but what it holds."""
    page = resources.files("headrace.serve.pages").joinpath("dashboard.html").read_bytes()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(page, b'script')}",
            f"style-src {_hashes(page, b'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return page, {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hashes(page: bytes, tag: bytes) -> str:
    found = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


async def dashboard(request: Request) -> Response:
    """A page that shows the server at work."""
    del request
    page, headers = _page()
    return Response(page, media_type="text/html", headers=headers)


async def events(request: Request) -> Response:
    """What the page shows, once a second."""
    if request.method == "HEAD":  # wants to know whether it may watch, and takes no place
        return Response(media_type=EventStream.media_type)
    feed, key = cast("Feed", request.app.state.feed), caller_terms().tenant.name
    news = feed.watch(key)
    return EventStream(_encoded(news), news)


async def _encoded(news: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async for found in news:
        yield event(found)


ROUTES = (
    Endpoint("/dashboard", dashboard, "GET", About(media_type="text/html", errors=(401, 500))),
    Endpoint(
        "/dashboard/events",
        events,
        "GET",
        About(media_type="text/event-stream", errors=(401, 429, 500)),
    ),
)
