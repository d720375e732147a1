"""The CPU that this process may use.

Cores: from the affinity mask, the cgroup quota and the hardware threads of a core. Memory: from the cgroup
limit and what the system has left.

All parsing is of files under a root folder, so tests use made-up ones.
"""

import os
from dataclasses import dataclass
from pathlib import Path

CGROUP_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a number near 2^63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Compute threads to use and why.

    `allowed` logical cores of the affinity mask, `physical` cores behind them, `quota` CPUs of the cgroup or
    None.
    """

    threads: int
    reason: str
    allowed: int
    physical: int
    quota: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that can still be used, and what limits them."""

    available_bytes: int
    reason: str


def detect(root: Path = Path("/")) -> Cores:
    """Cores of this process."""
    allowed = affinity()
    return plan_cores(allowed, physical_cores(allowed, root), cgroup_quota(root))


def affinity() -> set[int]:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def plan_cores(allowed: set[int], physical: int, quota: float | None) -> Cores:
    """How many compute threads: one per physical core, within the quota rounded down, at least one."""
    count, reason = physical, f"{len(allowed)} logical cores allowed"
    if physical < len(allowed):
        reason += f", {physical} physical"
    if quota is not None and int(quota) < count:
        count, reason = max(1, int(quota)), reason + f", the cgroup grants {quota:g} CPUs"
    return Cores(threads=max(1, count), reason=reason, allowed=len(allowed), physical=physical, quota=quota)


def physical_cores(allowed: set[int], root: Path = Path("/")) -> int:
    """Physical cores behind a set of logical ones; all of them when the topology is unknown."""
    cores: set[str] = set()
    for cpu in allowed:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(folder / "thread_siblings_list") or _read(folder / "core_cpus_list")
        cores.add(siblings or f"cpu{cpu}")
    return len(cores) or 1


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the cgroup grants (the smallest on the way to the root), or None."""
    quotas = [_quota_v2(folder) for folder in _cgroup_folders(root, "")]
    quotas += [_quota_v1(folder) for folder in _cgroup_folders(root, "cpu")]
    known = [quota for quota in quotas if quota is not None]
    return min(known, default=None)


def cgroup_memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """(limit, use) in bytes of the tightest memory cgroup, or None without a limit.

    The use counts what cannot be dropped: file pages of the inactive list are given back under pressure.
    """
    found = [_memory_v2(folder) for folder in _cgroup_folders(root, "")]
    found += [_memory_v1(folder) for folder in _cgroup_folders(root, "memory")]
    return min((x for x in found if x is not None), key=lambda x: x[0] - x[1], default=None)


def memory(root: Path = Path("/")) -> Memory:
    """Memory that can still be used: the smaller of the system's and the cgroup's rest."""
    system = meminfo_available(_read(root / "proc/meminfo") or "")
    group = cgroup_memory(root)
    rest = None if group is None else max(0, group[0] - group[1])
    if rest is not None and group is not None and (system is None or rest < system):
        return Memory(available_bytes=rest, reason=f"cgroup limit of {group[0]} bytes, {group[1]} in use")
    if system is None:
        return Memory(available_bytes=1 << 30, reason="unknown; one GiB is assumed")
    return Memory(available_bytes=system, reason=f"the system has {system} bytes available")


def meminfo_available(text: str) -> int | None:
    """`MemAvailable` of /proc/meminfo in bytes."""
    value = _fields(text).get("MemAvailable:", "")
    return int(value) * 1024 if value.isdigit() else None


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Instruction set flags as the kernel names them (`avx2`, `avx512f` …); empty when unknown."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in {"flags", "features"}:
            return frozenset(value.split())
    return frozenset()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _fields(text: str) -> dict[str, str]:
    """First word of each line -> second word."""
    pairs = (line.split() for line in text.splitlines())
    return {words[0]: words[1] for words in pairs if len(words) >= 2}


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's cgroup and its parents; controller "" is version 2.

    In a container the path of the process may not be mounted; the mount point itself then is its cgroup.
    """
    mount = root / "sys/fs/cgroup" / controller
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and ".." not in Path(path).parts:
            own = mount / path.lstrip("/")
            between = [p for p in own.parents if p == mount or mount in p.parents]
            return [own, *between] if own != mount else [mount]
    return [mount]


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None


def _memory_v2(folder: Path) -> tuple[int, int] | None:
    return _memory(folder, "memory.max", "memory.current", "inactive_file")


def _memory_v1(folder: Path) -> tuple[int, int] | None:
    return _memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory(folder: Path, limit_file: str, use_file: str, cache: str) -> tuple[int, int] | None:
    limit, use = _read(folder / limit_file) or "", _read(folder / use_file) or ""
    if not limit.isdigit() or int(limit) >= CGROUP_UNLIMITED:
        return None
    droppable = _fields(_read(folder / "memory.stat") or "").get(cache, "0")
    used = int(use) if use.isdigit() else 0
    return int(limit), max(0, used - (int(droppable) if droppable.isdigit() else 0))
