"""The gate: every request but the two probes needs a key when there are keys, and leaves with its terms."""

import base64
import binascii
import math

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.clock import now_s
from headrace.base.errors import HeadraceError, RequestError
from headrace.base.terms import Tenant, Terms, set_caller
from headrace.serve.faults import fault_response
from headrace.serve.front.keys import Keys
from headrace.serve.limits import discard_body

OPEN_PATHS = frozenset({"/health", "/ready"})
PAGE_PATHS = frozenset({"/dashboard", "/dashboard/events"})
"""What a browser's own login opens."""
TIMEOUT_HEADER = b"x-request-timeout"
"""Seconds from now after which the client does not want the answer any more."""
MAX_TIMEOUT_S = 86_400.0


class UnauthorizedError(RequestError):
    """No key, or the wrong one."""

    http_status = 401
    code = "invalid_api_key"


class Gate:
    """ASGI wrapper: passes requests that bring a key, and says on which terms they run.

    The key comes as `Authorization: Bearer KEY` or, as Anthropic's clients send it, as `x-api-key: KEY`;
    a browser that opens the dashboard asks its user and sends it as the password of `Authorization: Basic`.
    That counts for the dashboard alone: a browser adds it to whatever another site's page makes it send here.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                set_caller(self._terms(scope))
            except HeadraceError as fault:
                await discard_body(Request(scope, receive))
                await fault_response(fault, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _terms(self, scope: Scope) -> Terms:
        return Terms(tenant=self._tenant(scope), deadline_s=_deadline_s(scope))

    def _tenant(self, scope: Scope) -> Tenant:
        if not len(self._keys):
            return Tenant()
        found = self._keys.find(_given_key(scope))
        if found is None:
            raise UnauthorizedError(
                "this server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        scope.setdefault("state", {})["tenant"] = found.name
        return found


def _given_key(scope: Scope) -> bytes:
    """The key of a request; `Authorization` wins, and of several headers the last."""
    bearer = plain = b""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = value[7:].strip()
        elif name == b"authorization" and value[:6].lower() == b"basic " and _is_page(scope):
            bearer = _password(value[6:].strip())
        elif name == b"x-api-key":
            plain = value.strip()
    return bearer or plain


def _is_page(scope: Scope) -> bool:
    return scope["method"] in {"GET", "HEAD"} and scope["path"] in PAGE_PATHS


def _password(credentials: bytes) -> bytes:
    """The password of `user:password` in base64; the user's name is not read."""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _deadline_s(scope: Scope) -> float | None:
    for name, value in scope["headers"]:
        if name == TIMEOUT_HEADER:
            return now_s() + _seconds(value)
    return None


def _seconds(value: bytes) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 < found <= MAX_TIMEOUT_S:
        raise RequestError(
            f"header X-Request-Timeout must be seconds in (0, {MAX_TIMEOUT_S:g}], got {value[:40]!r}",
            param="X-Request-Timeout",
        )
    return found
