"""What the dashboard is made of: pictures of the scheduler, percentiles, blocks, verdict, roofline."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.messages import BlockState
from headrace.base.metrics.timeline import Part, PartName, Timeline
from headrace.base.terms import _CALLER, Tenant, Terms
from headrace.engine.doctor.trace import Scrape, Trace
from headrace.engine.outputs import EngineHealth, EngineStats, RequestOutput, Usage
from headrace.engine.timelines.store import TimelineStore
from headrace.host.kv.pool import BlockPool
from headrace.host.sched.limits import ScheduleLimits
from headrace.serve.metrics import ServerMetrics
from headrace.serve.pages.doctor import EVERY_S, LEAST_S, MOST_APART_S, WINDOW_S, Doctor
from headrace.serve.pages.feed import runs
from headrace.serve.pages.figures import roofline, speculation
from headrace.serve.pages.recent import KEPT, NUM_SLOWEST, Recent, percentiles
from tests.kit.host import World, make_request


def ended(name: str, *, queue: float, prefill: float, decode: float, tokens: int) -> RequestOutput:
    return RequestOutput(
        request_id=name,
        prompt_ids=(1, 2, 3),
        choices=(),
        finished=True,
        usage=Usage(prompt_tokens=3, completion_tokens=tokens),
        seed=1,
        timings={"queue_s": queue, "prefill_s": prefill, "decode_s": decode},
    )


def test_every_state_of_a_block_is_told():
    pool = BlockPool(4)
    held, shared, cached = (pool.take()[0] for _ in range(3))
    pool.share(shared)
    pool.keys[cached] = b"key"  # type: ignore[assignment]
    pool.drop(cached)
    states = pool.states()
    assert [states[block] for block in (held, shared, cached)] == [
        BlockState.HELD,
        BlockState.SHARED,
        BlockState.CACHED,
    ]
    assert Counter(states) == Counter(dict.fromkeys(BlockState, 1))


def test_a_picture_shows_who_runs_and_their_blocks():
    world = World(
        num_blocks=8, block_size=4, limits=ScheduleLimits(max_num_seqs=3, max_num_batched_tokens=64)
    )
    world.add(make_request("a", range(6), max_tokens=9))
    world.add(make_request("b", range(100, 104), max_tokens=5))
    assert world.scheduler.picture().rows == ()
    world.step()
    world.step()
    picture = world.scheduler.picture()
    assert picture.num_slots == 3
    assert picture.step == 2
    told = {
        row.request_id: (row.prompt_tokens, row.computed_tokens, row.output_tokens, row.max_tokens)
        for row in picture.rows
    }
    assert told == {"a": (6, 7, 2, 9), "b": (4, 5, 2, 5)}
    assert [row.slot for row in picture.rows] == sorted(row.slot for row in picture.rows)
    assert Counter(picture.blocks) == {BlockState.HELD: 4, BlockState.FREE: 4}


def test_percentiles_are_those_of_the_last_minute_and_the_slowest_of_all_kept():
    recent = Recent()
    recent.see(ended("old", queue=9.0, prefill=1.0, decode=5.0, tokens=6), now_s=0.0)
    for i in range(1, 5):
        recent.see(ended(f"new{i}", queue=0.0, prefill=i / 10, decode=0.3, tokens=i), now_s=100.0)
    told: Any = recent.tell(101.0, TimelineStore(9), with_ids=True)
    assert told["requests"] == 4
    assert told["ttft_ms"] == pytest.approx({"p50": 250.0, "p90": 370.0, "p99": 397.0})
    # one token has no time between tokens: 0.3 s over 1, 2 and 3 gaps are left
    assert told["tpot_ms"]["p50"] == 150.0
    assert [s["id"] for s in told["slowest"]] == ["old", "new4", "new3", "new2", "new1"]
    assert told["slowest"][0]["age_s"] == 101.0
    assert {s["id"] for s in recent.tell(101.0, TimelineStore(9), with_ids=False)["slowest"]} == {""}


def test_the_slowest_are_told_with_the_parts_of_their_own_timelines():
    recent, store = Recent(), TimelineStore(9)
    spent = (
        Part(PartName.QUEUE, 1.0, "slots"),
        Part(PartName.QUEUE, 0.5, "blocks"),
        Part(PartName.OTHERS_PREFILL, 2.0, "somebody's"),
        Part(PartName.STREAM_OUT, 0.25),
    )
    for tenant in ("mine", "theirs"):
        line = Timeline(request_id="r", arrival_s=0.0, until_s=3.75, is_finished=True, parts=spent)
        store.keep(tenant, line if tenant == "mine" else replace(line, parts=()))
    for name, tenant in (("r", "mine"), ("forgotten", "mine")):
        token = _CALLER.set(Terms(tenant=Tenant(name=tenant)))
        recent.see(ended(name, queue=1.0, prefill=0.0, decode=2.0 - (name != "r"), tokens=2), now_s=0.0)
        _CALLER.reset(token)
    told: Any = recent.tell(1.0, store, with_ids=False)["slowest"]
    assert [[tuple(part.values()) for part in one["parts"]] for one in told] == [
        [("queue", 1.5), ("others_prefill", 2.0), ("stream_out", 0.25)],
        [("queue", 1.0), ("decode", 1.0)],
    ]
    assert "somebody" not in str(told)


def test_what_is_kept_is_bounded():
    recent = Recent()
    for i in range(KEPT + 50):
        recent.see(ended(str(i), queue=0.0, prefill=1.0, decode=float(i), tokens=2), now_s=float(i))
    told = recent.tell(KEPT + 50.0, TimelineStore(9), with_ids=True)
    assert [s["id"] for s in told["slowest"]] == [str(KEPT + 49 - i) for i in range(NUM_SLOWEST)]
    assert len(recent._ended) == KEPT


def test_percentiles_of_nothing_are_nothing_and_of_one_are_itself():
    assert percentiles([]) == {}
    assert percentiles([2.0]) == {"p50": 2.0, "p90": 2.0, "p99": 2.0}
    assert percentiles(range(1, 102)) == {"p50": 51, "p90": 91, "p99": 100}
    assert percentiles([1.0, 2.0])["p50"] == 1.5


def test_runs_of_blocks_say_every_block():
    assert runs(bytes([0, 0, 2, 3, 3, 3, 0])) == [(0, 2), (2, 1), (3, 3), (0, 1)]
    assert runs(b"") == []


def doctor_of(*, alive: bool = True) -> Doctor:
    health = EngineHealth(alive=alive, making_progress=True, ready=True)
    llm = SimpleNamespace(health=lambda: health, num_restarts=0)
    state: Any = SimpleNamespace(llm=llm, metrics=ServerMetrics())
    return Doctor(state)


def bound_by_memory(at_s: float) -> EngineStats:
    """An engine of which 0.95 of each second are steps, all at the roof of memory."""
    counters = {
        "loop_seconds": 0.96 * at_s,
        "decode_steps": 10 * at_s,
        "decode_step_tokens": 20 * at_s,
        "decode_step_seconds": 0.95 * at_s,
        "decode_memory_roof_seconds": 0.76 * at_s,
    }
    return EngineStats(counters=counters, gauges={"running": 2.0, "waiting": 0.0, "slots": 8.0})


def test_the_verdict_is_that_of_the_last_seconds():
    doctor = doctor_of()
    assert doctor.verdict() is None
    doctor.see(bound_by_memory(0.0), 100.0)
    doctor.see(bound_by_memory(1.0), 101.0)
    assert doctor.verdict() is None, "one second is too short"
    doctor.see(bound_by_memory(2.0), 102.0)
    told = doctor.verdict()
    assert told is not None
    assert told["bottleneck"] == "memory bandwidth"
    assert told["evidence"]["step_share"] == pytest.approx(0.95)
    assert told["evidence"]["of_limit"] == pytest.approx(0.8)
    assert told["evidence"]["rows_per_step"] == pytest.approx(2.0)
    assert told["findings"][0]["remedy"].startswith("read the weights less often")
    for second in range(3, 3 + int(WINDOW_S)):  # nothing more is done
        doctor.see(bound_by_memory(2.0), 100.0 + second)
    told = doctor.verdict()
    assert told is not None
    assert told["bottleneck"] == "idle"


def test_what_is_kept_for_the_verdict_is_bounded_and_without_holes():
    doctor = doctor_of()
    for tick in range(1000):
        doctor.see(bound_by_memory(tick / 100), 100.0 + tick / 100)
    trace = doctor.trace
    assert trace is not None
    assert WINDOW_S - 1 < trace.seconds <= WINDOW_S
    assert len(trace.scrapes) <= WINDOW_S / (EVERY_S * 0.9) + 1
    doctor.see(bound_by_memory(20.0), trace.scrapes[-1].seconds + MOST_APART_S + 0.1)
    assert doctor.trace is None, "what was long ago is not joined to now"


@pytest.mark.parametrize("alive", [True, False])
def test_an_engine_that_died_is_found_and_one_that_lives_is_not_blamed(alive: bool):
    doctor = doctor_of(alive=alive)
    doctor.see(bound_by_memory(0.0), 100.0)
    doctor.see(bound_by_memory(0.0), 100.0 + LEAST_S)
    told = doctor.verdict()
    assert told is not None
    assert ("engine restarts" in {found["name"] for found in told["findings"]}) is not alive


def roof_scrape(at_s: float, **values: float) -> Scrape:
    limits = {
        "headrace_limit_read_bytes_per_second": 10e9,
        "headrace_limit_operations_per_second": 400e9,
    }
    told = {
        f'headrace_{name}_total{{phase="{phase}"}}': values.get(f"{phase}_{name}", 0.0)
        for phase in ("decode", "prefill")
        for name in ("phase_step_seconds", "step_bytes_read", "step_operations")
    }
    return Scrape(at_s, limits | told)


def test_points_below_the_roof_are_those_of_each_phase_alone():
    before = roof_scrape(5.0, decode_phase_step_seconds=7.0, decode_step_bytes_read=1e9)
    after = roof_scrape(
        15.0,
        decode_phase_step_seconds=11.0,
        decode_step_bytes_read=33e9,
        decode_step_operations=80e9,
        prefill_phase_step_seconds=2.0,
        prefill_step_bytes_read=2e9,
        prefill_step_operations=600e9,
    )
    assert roofline(Trace((before, after))) == {
        "limit_bytes_s": 10e9,
        "limit_operations_s": 400e9,
        "phases": {
            "decode": {"bytes_s": 8e9, "operations_s": 20e9, "share": 0.8},
            "prefill": {"bytes_s": 1e9, "operations_s": 300e9, "share": 0.75},
        },
    }
    quiet = roofline(Trace((after, Scrape(16.0, after.values))))
    assert quiet is not None
    assert quiet["phases"] == {}
    assert roofline(Trace((Scrape(0.0, {}), Scrape(1.0, {})))) is None


def test_speculation_is_told_where_there_are_drafts():
    assert speculation({"steps": 3.0}) is None
    names = ["drafts_checked", "drafts_accepted", "draft_rows", "draft_step_seconds", "draft_plain_seconds"]
    nothing = dict.fromkeys(names, 0.0)
    assert speculation(nothing) == {"acceptance": None, "tokens_per_row": None, "speedup": None}
    counters = {
        "drafts_checked": 40.0,
        "drafts_accepted": 30.0,
        "draft_rows": 20.0,
        "draft_step_seconds": 2.0,
        "draft_plain_seconds": 3.0,
    }
    assert speculation(counters) == {"acceptance": 0.75, "tokens_per_row": 2.5, "speedup": 1.5}
