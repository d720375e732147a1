"""The prefix cache: what hits, what never hits, and the reason for a miss."""

from typing import Any

import pytest

from headrace.base.ids import AdapterId
from headrace.host.kv.prefix import PrefixOutcome
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
    world = World(**MANY)
    assert serve(world, "a", range(40)) == serve(world, "b", range(100, 140)) == 0
    assert outcomes(world) == {PrefixOutcome.NO_COMMON_PREFIX: 2}


def test_share_shorter_than_a_block():
    world = World(**MANY)
    serve(world, "a", range(40))
    assert serve(world, "b", [*range(10), *range(100, 140)]) == 0
    assert outcomes(world)[PrefixOutcome.SHORTER_THAN_BLOCK] == 1


def test_evicted():
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
    world = World(**MANY)
    serve(world, "a", range(40))
    assert serve(world, "b", range(40), **apart) == 0
    assert outcomes(world)[reason] == 1
    assert serve(world, "c", range(40), **apart) == 32
    world.verify()


def test_switched_off_says_so():
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
