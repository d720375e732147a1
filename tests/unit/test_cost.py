"""The scheduler's cost model keeps steps under their bound, on costs that grow and jitter."""

import random

from headrace.host.sched.cost import StepCost

LIMIT_S = 0.15
DECODE_S = 0.012
TOKEN_S = 0.0006


def prompt_steps(cost: StepCost, rng: random.Random, length: int = 3000) -> list[float]:
    """Prefill one prompt beside eight decoding rows; later tokens cost more, up to double."""
    seconds: list[float] = []
    done = 0
    while done < length:
        room = cost.prefill_room(LIMIT_S, 8, 16)
        assert room is not None
        count = min(room, length - done)
        each_s = TOKEN_S * (1 + (done + count / 2) / length)
        took_s = (DECODE_S + each_s * count) * rng.uniform(0.93, 1.07)
        cost.observe(took_s, count, 8)
        seconds.append(took_s)
        done += count
    return seconds


def test_all_but_a_few_steps_stay_under_the_bound_and_use_it() -> None:
    rng, cost = random.Random(1), StepCost()
    for _ in range(20):
        cost.observe(DECODE_S * rng.uniform(0.93, 1.07), 0, 8)
    for _ in range(3):
        prompt_steps(cost, rng)
    steps = [s for _ in range(20) for s in prompt_steps(cost, rng)]
    assert sum(s > LIMIT_S for s in steps) / len(steps) < 0.05
    assert sum(steps) / len(steps) > 0.7 * LIMIT_S


def test_a_hiccup_does_not_stop_prefill() -> None:
    cost = StepCost()
    cost.observe(DECODE_S, 0, 8)
    for _ in range(20):
        cost.observe(DECODE_S + 100 * TOKEN_S, 100, 8)
    before = cost.prefill_room(LIMIT_S, 8, 16) or 0
    cost.observe(5.0, 100, 8)
    after = cost.prefill_room(LIMIT_S, 8, 16) or 0
    for _ in range(20):
        cost.observe(DECODE_S + 100 * TOKEN_S, 100, 8)
    later = cost.prefill_room(LIMIT_S, 8, 16) or 0
    assert before / 5 < after < before
    assert later > 0.8 * before


def test_nobody_decodes_means_no_bound() -> None:
    cost = StepCost()
    cost.observe(1.0, 100, 0)
    assert cost.prefill_room(LIMIT_S, 0, 16) is None
