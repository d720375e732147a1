"""What the dashboard is made of: pictures of the scheduler, percentiles of a minute, runs of blocks."""

from collections import Counter
from typing import Any

from headrace.base.messages import BlockState
from headrace.engine.outputs import RequestOutput, Usage
from headrace.host.kv.pool import BlockPool
from headrace.host.sched.limits import ScheduleLimits
from headrace.serve.pages.feed import runs
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
    told: Any = recent.tell(101.0, with_ids=True)
    assert told["requests"] == 4
    assert told["ttft_ms"] == {"p50": 300.0, "p90": 400.0, "p99": 400.0}
    # one token has no time between tokens: 0.3 s over 1, 2 and 3 gaps are left
    assert told["tpot_ms"]["p50"] == 150.0
    assert [s["id"] for s in told["slowest"]] == ["old", "new4", "new3", "new2", "new1"]
    assert told["slowest"][0]["age_s"] == 101.0
    assert {s["id"] for s in recent.tell(101.0, with_ids=False)["slowest"]} == {""}


def test_what_is_kept_is_bounded():
    recent = Recent()
    for i in range(KEPT + 50):
        recent.see(ended(str(i), queue=0.0, prefill=1.0, decode=float(i), tokens=2), now_s=float(i))
    told = recent.tell(KEPT + 50.0, with_ids=True)
    assert [s["id"] for s in told["slowest"]] == [str(KEPT + 49 - i) for i in range(NUM_SLOWEST)]
    assert len(recent._ended) == KEPT


def test_percentiles_of_nothing_are_nothing_and_of_one_are_itself():
    assert percentiles([]) == {}
    assert percentiles([2.0]) == {"p50": 2.0, "p90": 2.0, "p99": 2.0}
    assert percentiles(range(1, 101)) == {"p50": 51, "p90": 91, "p99": 100}


def test_runs_of_blocks_say_every_block():
    assert runs(bytes([0, 0, 2, 3, 3, 3, 0])) == [(0, 2), (2, 1), (3, 3), (0, 1)]
    assert runs(b"") == []
