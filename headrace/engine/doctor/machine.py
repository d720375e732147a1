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
    huge_pages: str
    """The chosen word of transparent_hugepage/enabled."""
    numa_nodes: int


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
        huge_pages=chosen[0] if chosen else "",
        numa_nodes=len(list(nodes.glob("node[0-9]*"))) if nodes.is_dir() else 0,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
