"""Keeping a process small: memory of a large request goes back to the system and not into its size."""

import ctypes
import gc
import sys
from collections.abc import Callable
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of glibc's `mallopt(3)`."""
_LARGE = 512 << 10
"""Bytes from which a block is mapped by itself."""
_KEPT = 1 << 20
"""Free bytes that may stay at the heap's top."""
_THRESHOLDS = (1_000, 5, 5)
"""Objects made and not freed until the youngest are collected; collections of an age until the next is."""


def keep_small() -> bool:
    """Have the allocator keep one heap, map large blocks by themselves, and return what is free at its top.

    glibc gives each thread a heap of its own (an arena), and raises the size from which it maps blocks to
    that of the largest one freed. Threads that tokenize texts of hundreds of kilobytes then keep tens of
    megabytes each. To be called before a process starts threads.

    Returns:
        False: the allocator is another one, or does not take all three.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEPT))
    return all(set_option(name, value) == 1 for name, value in wanted)


def settle() -> None:
    """Have cycles of objects collected soon from here on; to be called when what lasts is loaded.

    A full collection waits until what it has not seen is a quarter of all that the last one saw, and the
    command line has raised the thresholds, since loading makes nothing but objects that stay. Ended requests
    would leave megabytes of cycles until then. What is loaded is taken out of sight; the collection after
    that sees nothing, so the quarter is one of what comes later.
    """
    gc.freeze()
    gc.collect()
    gc.set_threshold(*_THRESHOLDS)


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
