"""Random schedules: every request gets exactly what it gets alone, nothing leaks, and no step stalls."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.host import Case, run_case

cases = st.builds(
    Case,
    policy=st.sampled_from(["continuous", "static", "dynamic"]),
    block_size=st.integers(1, 5),
    num_blocks=st.integers(6, 20),
    budget=st.integers(1, 24),
    num_drafts=st.sampled_from([0, 0, 1, 3]),
    depth=st.sampled_from([1, 1, 2, 3]),
    chunked=st.booleans(),
    max_num_seqs=st.integers(1, 5),
)


@given(cases, st.integers(0, 2**32))
def test_any_schedule_gives_the_solo_output(case, seed):
    run_case(case, Random(seed))


def test_three_hundred_fixed_schedules_reach_every_mechanism():
    seen = {"preemptions": 0, "hits": 0, "evictions": 0, "copies": 0, "drafts": 0, "late": 0}
    for seed in range(300):
        rng = Random(seed)
        case = Case(
            policy=rng.choice(["continuous", "static", "dynamic"]),
            block_size=rng.randrange(1, 6),
            num_blocks=rng.randrange(6, 21),
            budget=rng.randrange(1, 25),
            num_drafts=rng.choice([0, 0, 1, 3]),
            depth=rng.choice([1, 1, 2, 3]),
            chunked=rng.random() < 0.7,
        )
        world = run_case(case, rng)
        stats = world.scheduler.stats()
        seen["preemptions"] += stats.preemptions
        seen["hits"] += stats.prefix.hit_tokens
        seen["evictions"] += stats.prefix.evictions
        seen["late"] += stats.late_results
        seen["copies"] += sum(len(p.moves) for p in world.plans)
        seen["drafts"] += sum(r.num_drafts for p in world.plans for r in p.rows)
    assert all(count > 20 for count in seen.values()), seen
