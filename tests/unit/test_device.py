"""Cores and memory from made-up system files."""

import os

import pytest

from headrace.compute.device.kinds import cpu


@pytest.fixture
def root(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def topology(siblings):
    """One thread_siblings_list per logical core."""
    return {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": s for i, s in enumerate(siblings)}


def test_hardware_threads_of_a_core_count_once(root):
    folder = root(topology(["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]))
    assert cpu.physical_cores(set(range(8)), folder) == 4
    assert cpu.physical_cores({0, 4}, folder) == 1
    assert cpu.physical_cores({0, 1}, folder) == 2


def test_a_hybrid_processor_counts_its_cores(root):
    folder = root(topology(["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]))
    assert cpu.physical_cores(set(range(8)), folder) == 6


def test_unknown_topology_counts_logical_cores(tmp_path):
    assert cpu.physical_cores({0, 1, 2}, tmp_path) == 3
    assert cpu.detect(tmp_path).threads == len(cpu.affinity())


@pytest.mark.parametrize(
    ("allowed", "physical", "quota", "threads"),
    [(8, 4, None, 4), (8, 8, 1.5, 1), (8, 8, 0.5, 1), (8, 8, 3.0, 3), (2, 2, 16.0, 2), (1, 1, None, 1)],
)
def test_threads_fit_cores_and_quota(allowed, physical, quota, threads):
    cores = cpu.plan_cores(set(range(allowed)), physical, quota)
    assert cores.threads == threads
    assert ("cgroup" in cores.reason) == (quota is not None and quota < physical)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "garbage"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"proc/self/cgroup": "0::/../../etc\n"}, None),
        ({}, None),
    ],
)
def test_cgroup_quota(root, files, quota):
    assert cpu.cgroup_quota(root(files)) == quota


GIB = 1 << 30
MEMINFO = "MemTotal: 16777216 kB\nMemFree: 100 kB\nMemAvailable: 8388608 kB\n"


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"proc/meminfo": MEMINFO}, 8 * GIB),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": str(GIB),
                "sys/fs/cgroup/memory.current": str(GIB // 2),
                "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 4}\n",
            },
            GIB - GIB // 4,
        ),
        ({"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max\n"}, 8 * GIB),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
            },
            0,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            8 * GIB,
        ),
        ({}, GIB),
    ],
)
def test_memory(root, files, available):
    memory = cpu.memory(root(files))
    assert memory.available_bytes == available
    assert memory.reason


def test_flags(root):
    assert cpu.cpu_flags(root({"proc/cpuinfo": "processor : 0\nflags\t\t: fpu avx2 fma\n"})) == {
        "fpu",
        "avx2",
        "fma",
    }
    assert cpu.cpu_flags(root({"proc/cpuinfo": "Features : asimd\n"})) == {"asimd"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_one_allowed_core_gives_one_thread():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpu.detect().threads == 1
    finally:
        os.sched_setaffinity(0, before)
