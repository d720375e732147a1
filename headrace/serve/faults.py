"""Errors as HTTP answers, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import logging
import math
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import EngineDeadError, HeadraceError, OverloadError

log = logging.getLogger("headrace.serve")

_TYPE_BY_STATUS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_MESSAGE_TYPES = _TYPE_BY_STATUS | {
    403: "permission_error",
    413: "request_too_large",
    503: "overloaded_error",
}
RESTART_S = "3"
"""Seconds after which a dead engine is usually up again."""
PAGE_PATH = "/dashboard"
PAGE_CHALLENGE = 'Basic realm="Headrace: any name, and an API key as the password", charset="UTF-8"'
"""Makes a browser ask for the key."""
MESSAGES_PATH = "/v1/messages"
"""Errors below this path have Anthropic's shape."""


class BodyTooLargeError(HeadraceError):
    """The body is larger than the server reads."""

    http_status = 413
    code = "request_too_large"


class SlowBodyError(HeadraceError):
    """The body did not arrive in time."""

    http_status = 408
    code = "request_timeout"


class DrainingError(HeadraceError):
    """The server is stopping and takes no new work."""

    http_status = 503
    code = "shutting_down"


class EngineFaultError(HeadraceError):
    """The engine failed while it worked on the request."""

    code = "engine_error"


class CancelledRequestError(HeadraceError):
    """The request was cancelled, and the API it came by has no answer for that."""

    http_status = 499
    code = "request_cancelled"


def error_body(error: HeadraceError) -> dict[str, Any]:
    """The JSON object that tells a client about an error."""
    status = error.http_status
    kind = _TYPE_BY_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def message_error_body(error: HeadraceError, status: int | None = None) -> dict[str, Any]:
    """The same in Anthropic's shape; `status` is the HTTP status when it is not the error's own."""
    status = status or error.http_status
    kind = _MESSAGE_TYPES.get(status, "invalid_request_error" if status < 499 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def fault_response(error: HeadraceError, path: str = "") -> Response:
    """The response for an error raised on purpose, in the shape of the API that owns the path."""
    headers: dict[str, str] = {}
    if isinstance(error, OverloadError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, DrainingError):
        headers["retry-after"] = "5"
    if isinstance(error, EngineDeadError):
        headers["retry-after"] = RESTART_S
    if error.http_status == 401:
        headers["www-authenticate"] = PAGE_CHALLENGE if path.startswith(PAGE_PATH) else "Bearer"
    shape = message_error_body if path.startswith(MESSAGES_PATH) else error_body
    return json_response(shape(error), error.http_status, headers)


def unexpected(error: BaseException) -> HeadraceError:
    """What a client learns about an error; the log has the rest where the fault is the server's.

    Errors raised on purpose are told as they are, an error that nobody foresaw only as that.
    """
    if isinstance(error, HeadraceError):
        if error.http_status == HeadraceError.http_status:
            log.error("%s: %s", type(error).__name__, error.message)
        return error
    log.error("unexpected error", exc_info=error)
    return HeadraceError("internal error; the server's log has the details")


async def on_headrace_error(request: Request, error: Exception) -> Response:
    """Exception handler for every error raised on purpose."""
    response = fault_response(unexpected(error), request.url.path)
    if isinstance(error, HeadraceError):  # others are raised on, for the log
        _release(error)
    return response


def _release(error: BaseException) -> None:
    """Let go of the frames that the error came through, and of the texts and ids in them.

    They hold the futures that hold the error; such rings, of megabytes each, would stay until a full
    collection.
    """
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for the router's own errors (no such path, wrong method)."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = {404: "no such path; see /v1/models for a start", 405: "method not allowed on this path"}
    fault = HeadraceError(detail.get(status, "request refused"))
    body = error_body(fault)
    body["error"]["type"] = _TYPE_BY_STATUS.get(status, "invalid_request_error")
    body["error"]["code"] = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if request.url.path.startswith(MESSAGES_PATH):
        body = message_error_body(fault, status)
    return json_response(body, status, headers)
