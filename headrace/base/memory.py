"""Keeping a process small: memory of a large request goes back to the system and not into its size."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of glibc's `mallopt(3)`."""
_LARGE = 512 << 10
_KEPT = 1 << 20


def keep_small() -> bool:
    """Have the allocator keep one heap, map large blocks by themselves, and return what is free at its top.

    glibc gives each thread a heap of its own (an arena), and raises the size from which it maps blocks to
    that of the largest one freed. Threads that tokenize texts of hundreds of kilobytes then keep tens of
    megabytes each. To be called before a process starts threads.

    Returns:
        False: the allocator is another one, and nothing was changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEPT))
    return all(set_option(name, value) == 1 for name, value in wanted)


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
