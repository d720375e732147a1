"""The machine: its limits (a probe, run before and after each block), and who else keeps it busy."""

import json
import os
import platform
import resource
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROBE = ROOT / "build/native/bench_limits"


def probe(program: Path = PROBE, threads: int | None = None) -> dict:
    """Run the probe (about 4 s). `threads`: None takes the cores this process may use.

    Raises:
        FileNotFoundError: it is not built.
    """
    if not program.is_file():
        raise FileNotFoundError(f"{program} is missing; `make bench-build` builds it")
    count = threads or len(os.sched_getaffinity(0))
    out = subprocess.run([str(program), str(count)], check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def machine() -> dict:
    """What a reader of the figures must know."""
    info = dict(
        line.split(":", 1)
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        if ":" in line
    )
    info = {k.strip(): v.strip() for k, v in info.items()}
    flags = set(info.get("flags", "").split())
    memory = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemTotal"))
    return {
        "cpu": info.get("model name", platform.machine()),
        "family": f"{info.get('cpu family', '?')}/{info.get('model', '?')}",
        "sets": [f for f in ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if f in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.split()[1]) / 2**20, 1),
        "cache": info.get("cache size", "?"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def busy_s() -> float:
    """CPU seconds that everything on this machine has used since it started."""
    v = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (v[0] + v[1] + v[2] + v[5] + v[6]) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    todo, found = [pid], []
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of these processes so far."""
    stats = [_stat(pid) for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in stats if f) / os.sysconf("SC_CLK_TCK")


def peak_rss_mib(pids: Iterable[int]) -> float:
    """Peak resident memory, summed; counts mapped weights."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total / 1024


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (index 1: parent, 11 and 12: ticks)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


class Others:
    """Cores that unrelated processes took while something was measured; near 0 on a quiet machine.

    `pids`: servers that are measured, besides this process and its children.
    """

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._pids = list(pids)
        self._start = (busy_s(), own_s() + cpu_s(self._pids))

    def cores(self, seconds: float) -> float:
        """Mean number of cores, over `seconds` since this was made."""
        busy, mine = busy_s() - self._start[0], own_s() + cpu_s(self._pids) - self._start[1]
        return max(0.0, round((busy - mine) / max(seconds, 0.01), 2))
