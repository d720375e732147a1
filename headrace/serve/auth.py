"""The API key: one comparison in constant time, on every path but the two probes."""

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.base.errors import RequestError
from headrace.serve.faults import fault_response

OPEN_PATHS = frozenset({"/health", "/ready"})


class UnauthorizedError(RequestError):
    """No key, or the wrong one."""

    http_status = 401
    code = "invalid_api_key"


class KeyGuard:
    """ASGI wrapper that lets a request pass when it brings the key as `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(api_key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        fault = UnauthorizedError("this server needs an API key: send `Authorization: Bearer KEY`")
        await fault_response(fault)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        # Digests have one length, so neither content nor length of the key shows in the time this takes.
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._digest)
