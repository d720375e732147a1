"""Field lessons of CPU serving, on whole engines: cores, threads, idle cost, memory."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.clock import now_s
from headrace.base.config import KVConfig
from headrace.base.errors import ConfigError
from headrace.base.request import SamplingParams
from headrace.compute.device.kinds.cpu import affinity, memory
from headrace.engine import build
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.llm import LLM
from headrace.engine.sizing import WORKING_BYTES
from tests.engine.test_process import PARAMS, PROMPTS, config

MIB = 1 << 20


def answers(**settings) -> list:
    with LLM(config(), **settings) as llm:
        return [[c.token_ids for c in r.choices] for r in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_cp2_one_allowed_core_is_enough():
    """Field lesson CP-2: start inside the allowed set, whatever the machine has."""
    want, before = answers(), affinity()
    try:
        os.sched_setaffinity(0, {max(before)})
        with LLM(replace(config(), device=replace(config().device, threads=None))) as llm:
            assert llm.resolved.threads == 1
            got = [[c.token_ids for c in r.choices] for r in llm.generate(PROMPTS, PARAMS)]
    finally:
        os.sched_setaffinity(0, before)
    assert got == want


@pytest.mark.parametrize(("limit_mib", "fits"), [(1024, True), (450, True), (384, False), (64, False)])
def test_cp3_a_memory_limit_shrinks_the_pool_or_refuses(monkeypatch, limit_mib, fits, tmp_path: Path):
    """Field lesson CP-3: what the cgroup grants is never exceeded, and the message says who needs what."""
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n")
    (group / "memory.max").write_text(str(limit_mib * MIB))
    (group / "memory.current").write_text("0")
    room = memory(tmp_path)
    assert room.available_bytes <= limit_mib * MIB
    monkeypatch.setattr(build, "memory", lambda: room)
    auto = replace(config(), kv=KVConfig())
    if not fits:
        with pytest.raises(ConfigError, match=r"weights take \d+, working memory \d+|weights \d+, working"):
            build.open_model(auto)
        return
    resolved = build.open_model(auto).resolved
    assert resolved.kv_bytes + WORKING_BYTES <= limit_mib * MIB
    with LLM(replace(auto, device=replace(auto.device, threads=1))) as llm:
        assert llm.generate([[5]], SamplingParams(max_tokens=3))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
async def test_cp5_an_idle_engine_costs_nothing():
    """Field lesson CP-5: below 2 % of a core, in both processes together, also right after work."""
    llm = await AsyncLLM.start(replace(config(), device=replace(config().device, threads=2)))
    try:
        async for _ in llm.generate([5, 6], PARAMS):
            pass
        pids = (os.getpid(), llm.client.process_id)
        begin, before = now_s(), sum(cpu_ticks(p) for p in pids)
        await asyncio.sleep(4)
        used_s = (sum(cpu_ticks(p) for p in pids) - before) / os.sysconf("SC_CLK_TCK")
        assert used_s < 0.02 * (now_s() - begin)
    finally:
        await llm.close()


@pytest.mark.parametrize("factor", [0.5, 1, 1.5, 2, 10])
def test_cp7_any_number_of_threads_gives_the_same_answers(factor):
    """Field lesson CP-7: from one thread to more than twice the cores."""
    threads = max(1, int(factor * len(affinity())))
    assert answers(threads=threads) == answers(threads=1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_kv8_memory_stays_within_the_announced_budget():
    """Field lesson KV-8: 300 distinct prompts, with the prefix cache on."""
    with LLM(config(), threads=1, num_blocks=512) as llm:
        first = resident()
        prompts = [[(i * 7 + j * (1 + i % 5)) % 90 + 3 for j in range(100)] for i in range(300)]
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        for begin in range(0, 300, 100):
            llm.generate(prompts[begin : begin + 100], params)
            if begin == 0:
                warm = resident()
        stats = llm.stats()
        assert stats.gauges["blocks_held"] == 0
        assert stats.gauges["blocks_free"] + stats.gauges["blocks_evictable"] >= 512
        assert resident() - first <= 1.05 * (llm.resolved.kv_bytes + WORKING_BYTES)
        assert resident() - warm <= 8 * MIB


def resident() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10
