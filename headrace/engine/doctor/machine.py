"""Facts of this host that matter to speed, from files under a root folder (tests use made-up ones)."""

from dataclasses import dataclass
from pathlib import Path

from headrace.compute.device.kinds.cpu import affinity, cgroup_quota, cpu_flags, physical_cores, plan_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known of the host. Empty texts and zeros: unknown."""

    threads: int
    """Compute threads that `auto` takes here."""
    allowed: int
    quota: float | None
    flags: frozenset[str]
    governor: str
    clock: "Clock"
    huge_pages: str
    """The chosen word of transparent_hugepage/enabled."""
    numa_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Of the processor, in MHz; 0.0: the system does not tell."""

    now: float = 0.0
    """The slowest core at this moment."""
    most: float = 0.0
    """What a core may reach."""


def machine_of(root: Path = Path("/")) -> Machine:
    """The facts of the host."""
    allowed = affinity()
    quota = cgroup_quota(root)
    cpus = root / "sys/devices/system/cpu"
    pages = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = [word.strip("[]") for word in pages.split() if word.startswith("[")]
    nodes = root / "sys/devices/system/node"
    return Machine(
        threads=plan_cores(allowed, physical_cores(allowed, root), quota).threads,
        allowed=len(allowed),
        quota=quota,
        flags=cpu_flags(root),
        governor=_read(cpus / "cpu0/cpufreq/scaling_governor"),
        clock=_clock(root),
        huge_pages=chosen[0] if chosen else "",
        numa_nodes=len(list(nodes.glob("node[0-9]*"))) if nodes.is_dir() else 0,
    )


def _clock(root: Path) -> Clock:
    """Under cpufreq, where frequencies are in kHz; where it is hidden, as in most guests, from cpuinfo."""
    cpus = root / "sys/devices/system/cpu"
    now = [_kilo(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    lines = _read(root / "proc/cpuinfo").splitlines()
    told = [line.partition(":")[2] for line in lines if line.startswith("cpu MHz")]
    found = [mhz for mhz in now if mhz] or [mhz for mhz in map(_number, told) if mhz]
    slowest = min(found, default=0.0)
    return Clock(now=slowest, most=_kilo(cpus / "cpu0/cpufreq/cpuinfo_max_freq"))


def _kilo(path: Path) -> float:
    return _number(_read(path)) / 1e3


def _number(text: str) -> float:
    """0.0: it is none."""
    return float(text) if text.strip().replace(".", "", 1).isdecimal() else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
