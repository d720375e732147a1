"""Giving memory back to the system, so that one large request does not stay in the process's size."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Return what the allocator keeps of freed memory; some milliseconds, nothing where it is not glibc's."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
