"""Errors with a cause and a remedy. A message names the value, the limit and what to do.

`http_status` and `code` say how the HTTP surface reports each kind (OpenAI's error shape).
"""

_MAX_QUOTING_CHARS = 1500


class HeadraceError(Exception):
    """Root of all errors that Headrace raises on purpose."""

    http_status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(HeadraceError):
    """A request asks for something invalid; `param` names the field."""

    http_status = 400
    code = "invalid_request_error"


class ContextLengthError(RequestError):
    """Prompt, or prompt and `max_tokens`, exceed the context limit."""

    code = "context_length_exceeded"


class CapacityError(RequestError):
    """A request that can never fit the KV pool of this engine."""

    code = "kv_capacity_exceeded"


class NotFoundError(RequestError):
    """A model, request or file of that name is not here."""

    http_status = 404
    code = "not_found"


class OverloadError(HeadraceError):
    """The queue is full; try again after `retry_after_s` seconds."""

    http_status = 429
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AbortedError(HeadraceError):
    """The request was aborted before its end, from outside."""

    http_status = 499
    code = "request_aborted"


class DeadlineError(HeadraceError):
    """The request's own deadline has passed."""

    http_status = 504
    code = "deadline_exceeded"


class EngineDeadError(HeadraceError):
    """The engine has stopped; requests fail until it is started again."""

    http_status = 503
    code = "engine_unavailable"


class UnreachableError(HeadraceError):
    """No server answers at an address that a tool was given."""

    http_status = 503
    code = "server_unreachable"

    def __init__(self, url: str, why: object) -> None:
        super().__init__(
            f"no server answers at {url} ({why}); start one with `headrace serve`, or give its address as "
            "--url"
        )


class ConfigError(HeadraceError):
    """Settings that are unknown, out of range, or impossible together."""

    code = "invalid_config"


class AddressTakenError(HeadraceError):
    """Another program listens at the address that a server was to have, or is about to."""

    code = "address_taken"


class CheckpointError(HeadraceError):
    """A model file that is broken, hostile, or asks for something Headrace lacks (named in the message).

    Messages quote the file, where a name or value may have any length: what is too long is cut.
    """

    code = "invalid_checkpoint"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        is_short = len(message) <= _MAX_QUOTING_CHARS
        super().__init__(message if is_short else message[:_MAX_QUOTING_CHARS] + " …", param=param)


class ShapeError(HeadraceError):
    """An operation was called with shapes it does not support."""

    code = "invalid_shape"


class DownloadError(HeadraceError):
    """A model could not be fetched, or its checksum is wrong."""

    code = "download_failed"


class NumericError(HeadraceError):
    """Logits of a request were NaN or infinite; only that request fails."""

    code = "numeric_error"


class InvariantError(HeadraceError):
    """The bookkeeping contradicts itself: a fault of Headrace, never of a request."""

    code = "invariant_broken"
