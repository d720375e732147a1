"""The prefix cache: what hits, what never hits, and the reason for a miss."""

import time
import tracemalloc
from hashlib import sha256
from itertools import product
from typing import Any

import pytest

from headrace.base.config import all_settings
from headrace.base.ids import AdapterId, BlockId
from headrace.base.step import RowResult, StepResult
from headrace.host.kv.keys import Domain, KeyChain, block_key
from headrace.host.kv.prefix import MEMORY, PrefixIndex, PrefixOutcome
from headrace.host.sched.limits import ScheduleLimits
from tests.kit.host import World, make_request

MANY: dict[str, Any] = {"num_blocks": 40, "block_size": 16}


def serve(world: World, name: str, prompt, **more) -> int:
    """Run one request alone; its cached tokens."""
    world.add(make_request(name, prompt, **more))
    world.run()
    return world.cached[name]


def outcomes(world: World) -> dict:
    return {o: n for o, n in world.scheduler.stats().prefix.outcomes if n}


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_a_hit_gives_what_a_miss_gives_and_leaves_a_token_to_compute(length):
    """PC-1."""
    world = World(**MANY)
    prompt = list(range(length))
    assert serve(world, "cold", prompt, logprobs=0) == 0
    assert serve(world, "warm", prompt, logprobs=0) == (length - 1) // 16 * 16
    for share in (1, 16, 17, 32):
        serve(world, f"share{share}", [*prompt[:share], *range(1000 * share, 1000 * share + 40)], logprobs=0)
        assert world.cached[f"share{share}"] == min(share, length) // 16 * 16
    world.verify()
    assert world.logprobs["cold"] == world.logprobs["warm"]


def test_no_common_prefix():
    """PC-7."""
    world = World(**MANY)
    assert serve(world, "a", range(40)) == serve(world, "b", range(100, 140)) == 0
    assert outcomes(world) == {PrefixOutcome.NO_COMMON_PREFIX: 2}


def test_share_shorter_than_a_block():
    """PC-7."""
    world = World(**MANY)
    serve(world, "a", range(40))
    assert serve(world, "b", [*range(10), *range(100, 140)]) == 0
    assert outcomes(world)[PrefixOutcome.SHORTER_THAN_BLOCK] == 1


def test_evicted():
    """PC-7."""
    world = World(num_blocks=4, block_size=16)
    serve(world, "a", range(40))
    serve(world, "b", range(100, 160))
    assert serve(world, "c", range(40)) == 0
    assert outcomes(world)[PrefixOutcome.EVICTED] == 1


@pytest.mark.parametrize(
    ("apart", "reason"),
    [
        ({"salt": "tenant"}, PrefixOutcome.OTHER_SALT),
        ({"adapter": AdapterId("lora")}, PrefixOutcome.OTHER_ADAPTER),
        ({"kv_domain": "long"}, PrefixOutcome.OTHER_KV_DOMAIN),
    ],
)
def test_other_salt_adapter_or_length_class_never_shares(apart, reason):
    """PC-3, PC-5, PC-7: no cached token, and the reason by name."""
    world = World(**MANY)
    serve(world, "a", range(40))
    assert serve(world, "b", range(40), **apart) == 0
    assert outcomes(world)[reason] == 1
    assert serve(world, "c", range(40), **apart) == 32
    world.verify()


def test_switched_off_says_so():
    """PC-7."""
    world = World(**MANY, prefix_cache=False)
    serve(world, "a", range(40))
    assert serve(world, "b", range(40)) == 0
    assert outcomes(world) == {PrefixOutcome.SWITCHED_OFF: 2}


def test_prompt_logprobs_take_no_hit_and_come_once():
    world = World(**MANY)
    serve(world, "a", range(40))
    assert serve(world, "b", range(40), prompt_logprobs=0) == 0
    assert outcomes(world)[PrefixOutcome.PROMPT_LOGPROBS] == 1
    world.verify()


def test_output_is_found_by_the_next_turn():
    world = World(**MANY)
    serve(world, "a", range(30), max_tokens=20)
    assert serve(world, "b", [*range(30), *world.tokens["a"], 1, 2]) == 48
    world.verify()


def test_a_prefix_is_eaten_from_its_end():
    world = World(num_blocks=6, block_size=4)
    serve(world, "a", range(17), max_tokens=1)
    serve(world, "b", range(100, 113), max_tokens=1)
    assert 0 < serve(world, "c", range(17), max_tokens=1) < 16
    world.verify()


def test_concurrent_request_shares_blocks_in_use():
    world = World(**MANY)
    world.add(make_request("a", range(40), max_tokens=20))
    world.step()
    world.add(make_request("b", range(40), max_tokens=20, seed=1))
    world.run()
    assert world.cached["b"] == 32
    world.verify()


def test_kv8_memories_of_the_past_are_bounded():
    """KV-8: no cache grows with the number of different prompts served."""
    index = PrefixIndex(num_blocks=4, block_size=4)
    bound = max(MEMORY, 16)
    for i in range(3 * MEMORY):
        key = block_key(b"root", [i])
        index.insert(key, BlockId(i % 4), "")
        index.evict(key)
        chain = KeyChain(Domain(salt=str(i)), 4)
        index.explain([i, i, i, i], chain, is_evicted=True, has_hit=False)
        index.remember(chain, 0, [i, i, i, i])
    assert not index.block_by_key
    assert not index._publishers
    assert len(index._evicted) == bound
    assert len(index._heads) == bound
    assert len(index._nexts) == bound


def test_kv8_a_finished_request_leaves_nothing_behind():
    world = World(num_blocks=10, block_size=4)
    tracemalloc.start()
    sizes = []
    for i in range(600):
        world.scheduler.add_group((make_request(f"r{i}", [i, i + 1, i + 2], max_tokens=2),))
        while world.scheduler.has_work:
            plan = world.scheduler.plan()
            assert plan is not None
            world.scheduler.commit(world.executor.run(plan))
        if i % 200 == 199:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # What may grow until its bound is reached is the memory of heads and evictions: under 1 kB for a request.
    assert sizes[2] - sizes[1] < 200 * 1024


@pytest.mark.perf
def test_pc9_the_cache_costs_little_when_nothing_repeats():
    """PC-9: bookkeeping per prompt token, with the cache on, on prompts that share nothing."""
    seconds = {}
    for is_on in (True, False, True, False):
        world = World(
            num_blocks=400,
            block_size=16,
            prefix_cache=is_on,
            limits=ScheduleLimits(max_num_batched_tokens=4096),
        )
        start = time.process_time()
        for i in range(40):
            world.scheduler.add_group((make_request(f"r{i}", range(i * 1000, i * 1000 + 512), max_tokens=1),))
            plan = world.scheduler.plan()
            assert plan is not None
            row = plan.rows[0]
            result = RowResult(slot=row.slot, lease=row.lease, tokens=(1,))
            world.scheduler.commit(StepResult(step=plan.step, rows=(result,)))
        seconds[is_on] = min(seconds.get(is_on, 9.0), time.process_time() - start)
    # 512 tokens take well over 50 ms on any CPU; two per cent of that is 1 ms a prompt.
    assert (seconds[True] - seconds[False]) / 40 < 1e-3


def test_pc5_keys_are_strong_chained_and_without_a_switch():
    """PC-5: nobody can weaken the hash, and no two domains or token lists can be spelled alike."""
    assert not [name for s in all_settings() if "hash" in (name := s.name)]
    parent = Domain(salt="s").root()
    want = sha256(parent + b"".join(t.to_bytes(8, "little", signed=True) for t in (1, 2))).digest()
    assert block_key(parent, [1, 2]) == want
    assert block_key(block_key(parent, [1, 2]), [3]) != block_key(parent, [3])
    fields = ("", "a", "aS", "Sa", "\0", "\1a")
    parts = product((None, *map(AdapterId, fields)), fields, fields)
    domains = [Domain(adapter=a, salt=s, kv_domain=k) for a, s, k in parts]
    assert len({d.root() for d in domains}) == len(domains)


def test_pc3_each_adapter_finds_its_own_blocks_only():
    """PC-3: A, then B, then the base model, then each again: as cold, and as its own repetition."""
    world = World(**MANY)
    adapters = [AdapterId("a@1"), AdapterId("a@2"), AdapterId("b@1"), None]
    for i, adapter in enumerate(adapters):
        assert serve(world, f"cold{i}", range(40), adapter=adapter) == 0
    for i, adapter in enumerate(adapters):
        assert serve(world, f"warm{i}", range(40), adapter=adapter) == 32
    world.verify()  # the simulated model's tokens depend on the adapter
    assert len({world.tokens[f"warm{i}"] for i in range(4)}) > 1
