"""The HTTP process stays small: its threads share one heap."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import Live

ARENA = 64 << 20
"""glibc reserves the heap of a thread as that much address space, aligned to it, and opens what is used."""


def num_arenas(pid: int) -> int:
    """Heaps of threads in a process, by its address space."""
    areas: list[tuple[int, int, str, bool]] = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, mode, *rest = line.split()
        start, end = (int(x, 16) for x in span.split("-"))
        areas.append((start, end, mode, len(rest) == 3))
    return sum(
        start % ARENA == 0
        and mode == "rw-p"
        and anonymous
        and next_mode == "---p"
        and next_end == start + ARENA
        for (start, _, mode, anonymous), (_, next_end, next_mode, _) in pairwise(areas)
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_that_tokenize_have_no_heaps_of_their_own(live_server: Live) -> None:
    def ask(number: int) -> int:
        body = {"prompt": f"{number} " + "word " * 2000}
        return httpx.post(live_server.url + "/tokenize", json=body, timeout=60).json()["count"]

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(ask, range(16)))
    assert min(counts) > 2000
    assert num_arenas(live_server.process.pid) == 0
