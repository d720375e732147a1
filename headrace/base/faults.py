"""Errors as data and back, for the border between processes."""

from headrace.base import errors
from headrace.base.errors import HeadraceError, OverloadError
from headrace.base.messages import Fault


def fault_of(error: BaseException) -> Fault:
    """The error as data; one that Headrace did not raise on purpose becomes an internal error."""
    if isinstance(error, OverloadError):
        return Fault(kind="OverloadError", message=error.message, retry_after_s=error.retry_after_s)
    if isinstance(error, HeadraceError):
        return Fault(kind=type(error).__name__, message=error.message, param=error.param)
    return Fault(kind="HeadraceError", message=f"{type(error).__name__}: {error}")


def error_of(fault: Fault) -> HeadraceError:
    """The error that the data describes."""
    if fault.kind == "OverloadError":
        return OverloadError(fault.message, retry_after_s=fault.retry_after_s)
    kind = getattr(errors, fault.kind, HeadraceError)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = HeadraceError
    return kind(fault.message, param=fault.param)
