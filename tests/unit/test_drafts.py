"""The controller of drafts: what it learns, what it chooses, and that it is never a loss."""

import random
from itertools import pairwise

import pytest

from headrace.base.errors import RequestError
from headrace.base.ids import SlotId
from headrace.base.request import Request, SamplingParams
from headrace.base.step import RowResult, StepResult
from headrace.base.tasks import MAX_DEPTH, Speculation
from headrace.base.terms import Tenant, Terms
from headrace.engine.sim import SimCost
from headrace.host.sched.drafts.depth import LOSS, Depth
from headrace.host.sched.drafts.price import STALE, Curve, StepPrice
from headrace.host.sched.drafts.track import COMMON_KEEP, DOUBT, KEEP, Rates, Track
from headrace.host.sched.limits import ScheduleLimits
from tests.kit.drafts import Machine, fixed_speed, simulate
from tests.kit.host import World, make_request

AUTO, OFF = Speculation("auto"), Speculation()


def flat(slope):
    """A step's time grows by `slope` of a plain step with each draft."""
    return lambda rows, drafts: 0.01 * (1 + 0.02 * rows) + 0.01 * slope * drafts


def roof(rows, drafts):
    """Reading the weights takes as long as computing eight tokens."""
    return 0.001 + 0.002 * max(8, rows + drafts)


def stairs(rows, drafts):
    """Kernels that compute four tokens as fast as one."""
    return 0.004 + 0.003 * -(-(rows + drafts) // 4)


COSTS = {"cheap": flat(0.05), "middle": flat(0.3), "dear": flat(1.1), "roof": roof, "stairs": stairs}


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 1.0])
def test_never_a_loss_and_near_the_best_fixed_depth_and_no_swinging(rate, rows, cost):
    """SP-6. Any seed does: 0 to 39 were tried once."""
    steps = {1: 600, 4: 300, 16: 120}[rows]
    plain, *fixed = (fixed_speed(rate, cost, rows, depth) for depth in range(11))
    for seed in range(5 if rate == 0.5 else 2):
        machine = Machine(lambda *_: rate, cost, noise=0.04, most=10, seed=seed)
        auto = simulate(machine, AUTO, rows, steps)
        assert auto >= 0.97 * plain, seed
        assert auto >= 0.90 * max(plain, *fixed), seed
        turns = sum((a > 0) != (b > 0) for a, b in pairwise(machine.depths[60:]))
        assert turns <= 2 * (steps // STALE) + 12, seed  # the first: plain steps that are measured


@pytest.mark.parametrize("depth", [1, 3, 10])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_speed_of_a_fixed_depth_is_that_of_a_run(rows, depth):
    for speculation, speed in (
        (OFF, fixed_speed(0.5, roof, rows, 0)),
        (Speculation("ngram", depth), fixed_speed(0.5, roof, rows, depth)),
    ):
        machine = Machine(lambda *_: 0.5, roof, noise=0.04, most=10, seed=1)
        assert simulate(machine, speculation, rows, 40) == pytest.approx(speed)


def bound(rows, drafts):
    """Arithmetic holds a step up from the fourth token on, and steps with drafts take another way."""
    return 0.0014 + 0.0006 * max(3, rows + drafts) + 0.000125 * rows * (drafts > 0)


def phases(seed):
    """How much longer each step takes: other programs come and go, for some steps at a time."""
    rng, level = random.Random(seed), []
    while len(level) < 300:
        level += [rng.choice([1.0, 1.0, 1.0, 1.25, 1.5])] * rng.randint(5, 40)
    return level


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_no_loss_from_the_first_step_on_where_drafts_are_dear_and_others_take_the_cores(rate, rows, is_alone):
    """SP-6. Nothing is known before, the steps that find that out count, and so do the tokens they give.

    What others take is no matter: the choices are judged as if the machine had been alone.
    """
    plain, *fixed = (fixed_speed(rate, bound, rows, depth) for depth in range(11))
    for seed in range(6):
        level = iter([1.0] * 300 if is_alone else phases(seed))

        def cost(rows, drafts, level=level):
            return bound(rows, drafts) * next(level)

        machine = Machine(lambda *_: rate, cost, noise=0.08, most=10, seed=seed)
        simulate(machine, AUTO, rows, 240, warm=0)
        auto = machine.num_tokens / sum(bound(rows, drafts) for drafts in machine.depths)
        assert auto >= 0.97 * plain, seed
        assert auto >= 0.92 * max(plain, *fixed), seed


def test_drafts_that_never_agree_are_not_checked_however_cheap_checks_seem():
    """Steps with drafts that seem faster than those without: noise, of which nothing is to be learnt."""
    machine = Machine(
        lambda *_: 0.0, lambda _, drafts: 0.01 - 0.002 * (drafts > 0), noise=0.1, most=8, seed=2
    )
    simulate(machine, AUTO, 1, 600)
    assert sum(machine.depths[20:]) == 0


def test_points_move_together_when_all_steps_become_slower():
    """Long after drafts were checked last; they would look cheap otherwise."""
    price = StepPrice()
    for _ in range(20):
        price.observe(16, 0, 1.0)
    for _ in range(20):
        price.observe(16, 4, 1.5)
    before = price.ratio(16, 4)
    for _ in range(30):
        price.observe(16, 0, 1.5)
    assert price.ratio(16, 4) == pytest.approx(before, rel=0.01)
    for _ in range(30):
        price.observe(16, 4, 1.8)
    assert price.ratio(16, 4) >= 0.88 * before  # half of it is taken for what all steps share


def test_no_draft_makes_a_step_cheaper():
    price = StepPrice()
    for drafts, seconds in ((0, 1.0), (3, 0.5)) * 20:
        price.observe(1, drafts, seconds)
    assert price.ratios(1, 4) == [1.0] * 5
    assert price.ratio(1, 3) == 1.0


def test_a_curve_with_steps_is_searched_beyond_the_next_step():
    """Seven drafts are best, three the best of those near; what lies between is worse than both."""
    machine = Machine(lambda *_: 0.9, stairs, noise=0.04, most=10, seed=4)
    assert simulate(machine, AUTO, 1, 600) >= 0.95 * fixed_speed(0.9, stairs, 1, 7)


def test_rows_that_agree_are_drafted_beside_rows_that_do_not():
    machine = Machine(lambda slot, _: float(slot % 2), flat(0.1), most=6)
    plain = simulate(Machine(lambda *_: 0.0, flat(0.1)), OFF, 4, 300)
    assert simulate(machine, AUTO, 4, 300) > 1.5 * plain


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_no_oscillation_at_the_threshold(noise):
    """A draft that gains nothing and loses nothing: it is checked or not, but not in turns."""
    machine = Machine(lambda *_: 0.5, flat(0.51), noise=noise, most=1)
    plain = simulate(Machine(lambda *_: 0.5, flat(0.51), noise=noise), OFF, 1, 2000)
    assert simulate(machine, AUTO, 1, 2000) >= 0.97 * plain
    turns = sum((a > 0) != (b > 0) for a, b in zip(machine.depths, machine.depths[1:], strict=False))
    assert turns <= 60  # of 2060


def test_drafts_that_begin_to_agree_are_noticed_and_those_that_stop_too():
    machine = Machine(lambda _, step: float(400 <= step < 700), flat(0.2), most=8)
    simulate(machine, AUTO, 1, 1000, warm=0)
    assert sum(machine.depths[20:400]) <= 12
    assert sum(machine.depths[430:700]) >= 7 * 270
    assert sum(machine.depths[720:]) <= 20  # twenty rows after it was good for 300
    assert sum(machine.depths[740:]) <= 4


def test_a_step_that_was_slow_once_does_not_end_drafting_for_good():
    def cost(rows, drafts):
        slow = 8.0 if drafts and len(machine.depths) < 40 else 1.0
        return flat(0.1)(rows, drafts) * slow

    machine = Machine(lambda *_: 1.0, cost, most=4)
    simulate(machine, AUTO, 1, 1500)
    assert sum(d > 0 for d in machine.depths[-200:]) > 150


@pytest.mark.parametrize("times", [1, 3])
def test_steps_that_are_slow_the_first_times_are_tried_again(times):
    """The first steps of a kind touch new memory."""
    seen = []

    def cost(rows, drafts):
        seen.append(drafts)
        slow = 3.0 if drafts and seen.count(drafts) <= times else 1.0
        return flat(0.1)(rows, drafts) * slow

    machine = Machine(lambda *_: 0.95, cost, most=8)
    simulate(machine, AUTO, 1, 600)
    assert sum(machine.depths[-200:]) > 5 * 200


def test_rates_forget_and_stop_at_the_first_that_disagrees():
    rates = Rates(KEEP)
    rates.learn(4, 2)
    assert rates.tried == [1, 1, 1, *[DOUBT] * (MAX_DEPTH - 3)]
    assert rates.agreed[:5] == [1, 1, 0, 0, 0]
    rates.learn(2, 2)
    assert rates.tried[:3] == [1 + KEEP, 1 + KEEP, 1]
    for _ in range(60):
        rates.learn(1, 0)
    assert rates.agreed[0] / rates.tried[0] < 0.001
    rates.learn(MAX_DEPTH + 5, MAX_DEPTH + 5)
    assert len(rates.tried) == MAX_DEPTH


def test_chances_fall_with_the_place_and_begin_with_what_others_saw():
    common = Rates(COMMON_KEEP)
    fresh = Track(most=8, depth=None).chances(common, 4, "suffix")
    assert fresh == sorted(fresh, reverse=True)
    for _ in range(100):
        common.learn(4, 4)
    assert min(Track(most=8, depth=None).chances(common, 4, "suffix")) > 0.8
    mine = Track(most=8, depth=None)
    for _ in range(30):
        mine.of("suffix").learn(1, 0)
    assert max(mine.chances(common, 4, "suffix")) < 0.35


def test_a_curve_is_straight_between_points_and_follows_when_one_moves():
    curve = Curve(1)
    curve.observe(0, 1.0)
    assert curve.seconds(2) == pytest.approx(1.4)
    for _ in range(60):
        curve.observe(4, 3.0)
    assert [curve.seconds(n) for n in (0, 2, 4, 6)] == pytest.approx([1.0, 2.0, 3.0, 4.0], rel=0.1)
    for _ in range(200):
        curve.observe(4, 6.0)
    assert curve.seconds(4) == pytest.approx(6.0, rel=0.01)
    assert 1.0 < curve.seconds(0) < 1.5
    before = curve.seconds(4)
    curve.observe(4, 600.0)
    assert curve.seconds(4) < 1.1 * before


def test_prices_of_other_numbers_of_rows_are_taken_from_the_nearest():
    price = StepPrice()
    assert price.ratios(2, 2) == pytest.approx([1.0, 1.1, 1.2])
    for rows, slope in ((1, 0.1), (8, 1.0)):
        price.observe(rows, 0, 1.0)
        for _ in range(60):
            price.observe(rows, 2, 1.0 + 2 * slope)
    assert price.ratios(2, 1) == pytest.approx([1.0, 1.1], rel=0.05)
    assert price.ratios(20, 1) == pytest.approx([1.0, 2.0], rel=0.05)
    price.observe(20, 0, 2.0)  # the seconds of a draft are those of the last curve that knows
    assert price.ratios(20, 1) == pytest.approx([1.0, 1.5], rel=0.05)


def test_prefill_estimates_learn_from_steps_with_drafts_what_they_would_take_without():
    """With a fixed depth there may be no other steps."""
    world = World(num_blocks=40, num_drafts=4, cost=SimCost(step_s=0.01, draft_s=0.002))
    world.add(make_request("a", [1, 2, 3], max_tokens=60))
    for _ in range(10):
        world.step()
    assert all(row.num_drafts for plan in world.plans[1:] for row in plan.rows)
    assert world.scheduler._planner.cost.decode_s(1) == pytest.approx(0.01, rel=0.1)


def last_steps(num_drafts, num_blocks, share, asked):
    """The step in which each request ends, and its preemptions. All drafts are wrong.

    Args:
        num_drafts: of those that speculate; 0: nobody does.
        num_blocks: blocks of 4.
        share: of the pool, for all of them together.
        asked: (step of its arrival, length of its prompt, tokens of its answer, `speculate`) of each.
    """
    limits = ScheduleLimits(max_num_seqs=8, max_num_batched_tokens=4096)
    world = World(num_blocks=num_blocks, num_drafts=num_drafts, limits=limits, prefix_cache=False)
    world.executor.draft_hits = 0
    terms = Terms(tenant=Tenant(name="t", kv_share=share))
    ends = {}
    for step in range(2000):
        for i, (arrival, length, most, wish) in enumerate(asked):
            if arrival == step:
                sampling = SamplingParams(max_tokens=most, seed=i, speculate=wish)
                prompt = tuple(range(i, i + length))
                world.add(Request(request_id=f"r{i}", prompt_ids=prompt, sampling=sampling, terms=terms))
        if world.scheduler.has_work:
            world.step()
        ends |= {name: step for name in world.last if name not in ends}
        if len(ends) == len(asked):
            return ends, {name: world.last[name].num_preempted for name in ends}
    raise AssertionError("no end in sight")


@pytest.mark.parametrize(("num_blocks", "share"), [(22, 1.0), (44, 0.5)], ids=["pool", "share"])
@pytest.mark.parametrize("depth", [1, 3, 4, 6, 8, 16])
def test_wrong_drafts_of_one_do_not_slow_another(depth, num_blocks, share):
    """The pool, or the part of it that a key may have, is just large enough without drafts."""
    asked = [(0, 8, 40, None), (0, 8, 36, "off")]
    plain = last_steps(0, num_blocks, share, [(*ask[:3], None) for ask in asked])
    assert plain == ({"r0": 39, "r1": 35}, {"r0": 0, "r1": 0})
    assert last_steps(depth, num_blocks, share, asked) == plain


@pytest.mark.parametrize("seed", range(40))
def test_wrong_drafts_slow_nobody_in_any_pool(seed):
    rng = random.Random(seed)
    asked = [
        (
            rng.choice([0, 0, rng.randint(0, 40)]),
            rng.randint(1, 24),
            rng.randint(1, 40),
            rng.choice([None, "off"]),
        )
        for _ in range(rng.randint(2, 7))
    ]
    num_blocks = rng.randint(16, 40)
    plain, _ = last_steps(0, num_blocks, 1.0, [(*ask[:3], None) for ask in asked])
    drafted, _ = last_steps(rng.choice([2, 4, 8, 16]), num_blocks, 1.0, asked)
    assert drafted == plain


@pytest.mark.parametrize(
    ("text", "method", "depth"),
    [("off", "off", None), ("auto", "auto", None), ("ngram,depth=3", "ngram", 3), ("suffix", "suffix", None)],
)
def test_forms(text, method, depth):
    assert Speculation.parse(text) == Speculation(method, depth)
    assert SamplingParams(speculate=text).speculate == text


@pytest.mark.parametrize(
    ("text", "method", "depth", "source"),
    [
        ("draft=smollm2:135m", "draft", None, "smollm2:135m"),
        ("draft=smollm2:135m,depth=4", "draft", 4, "smollm2:135m"),
        ("draft=/a=b, c/é.gguf", "draft", None, "/a=b, c/é.gguf"),
        ("draft=/a=b, c/x,depth=2,depth=3", "draft", 3, "/a=b, c/x,depth=2"),
        ("early-exit=4", "early-exit", None, "4"),
        ("draft", "draft", None, ""),
        ("draft,depth=2", "draft", 2, ""),
    ],
)
def test_forms_of_methods_that_are_made_from_something(text, method, depth, source):
    assert Speculation.parse(text) == Speculation(method, depth, source)
    assert Speculation.parse(text).is_late


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be METHOD"),
        ("ngram,depth", "must be METHOD"),
        ("ngram,deep=3", "must be METHOD"),
        ("ngram,depth=-1", "must be METHOD"),
        ("ngram,depth=0", r"in \[1, 16\], got 0"),
        ("ngram,depth=17", r"in \[1, 16\], got 17"),
        ("off,depth=2", "off has no depth"),
        ("ngram=4", "must be METHOD"),
        ("draft=", "draft needs draft=MODEL, got ''"),
        ("draft=,depth=2", "draft needs draft=MODEL, got ''"),
        ("draft=a\nb", r"draft needs draft=MODEL, got 'a\\nb'"),
        ("medusa=" + "x" * 5000, "medusa needs medusa=PATH"),
        ("eagle=x,depth=17", r"in \[1, 16\], got 17"),
    ],
)
def test_other_forms_are_refused_by_name(text, says):
    with pytest.raises(RequestError, match=says) as caught:
        SamplingParams(speculate=text)
    assert caught.value.param == "speculate"


@pytest.mark.parametrize(
    ("wish", "offered", "gives"),
    [
        ("off", "off", "off"),
        ("off", "ngram", "off"),
        ("ngram", "auto", "ngram"),
        ("ngram,depth=2", "auto", "ngram,depth=2"),
        ("suffix,depth=2", "suffix,depth=4", "suffix,depth=2"),
        ("suffix", "suffix,depth=4", "suffix,depth=4"),
        ("draft", "draft=x", "draft=x"),
        ("draft,depth=2", "draft=x,depth=4", "draft=x,depth=2"),
        ("draft=x", "draft=x,depth=4", "draft=x,depth=4"),
    ],
)
def test_a_request_wishes_within_what_the_engine_has(wish, offered, gives):
    found = Speculation.parse(wish).within(Speculation.parse(offered))
    assert found == Speculation.parse(gives)


@pytest.mark.parametrize(
    ("wish", "offered", "says"),
    [
        ("ngram", "off", "speculation is off here"),
        ("auto", "ngram", "only ngram runs here"),
        ("suffix", "ngram", "only ngram runs here"),
        ("ngram,depth=5", "ngram,depth=4", "at most 4 here, got 5"),
        ("draft=x", "auto", "only auto runs here; start with --speculate draft=MODEL"),
        ("ngram", "draft=x", "only draft runs here"),
        ("draft=y", "draft=x", "draft was started with something else here; ask for draft or off"),
    ],
)
def test_a_wish_beyond_it_is_refused(wish, offered, says):
    with pytest.raises(RequestError, match=says):
        Speculation.parse(wish).within(Speculation.parse(offered))


@pytest.mark.parametrize("where", ["choose", "learn"])
def test_what_the_host_takes_for_drafts_is_part_of_their_price(monkeypatch, where):
    """In planning or in committing: the runner's seconds alone would let each draft pay."""
    machine, original = Machine(lambda *_: 0.5, flat(0.05), most=4), getattr(Depth, where)

    def slow(self, *args):
        original(self, *args)
        rows = args[0] if where == "choose" else args[2:3]
        machine.time_s += 0.006 * sum(row.num_drafts for row in rows)

    monkeypatch.setattr(Depth, where, slow)
    simulate(machine, AUTO, 4, 400)
    assert sum(d > 0 for d in machine.depths[60:]) <= 20


def test_what_drafts_gain_is_told_with_the_host_and_what_a_step_takes_without_it():
    """Steps of 10 ms and 5 ms of the host, with drafts 20 ms and 9 ms for two tokens a row."""
    drafts = Depth(AUTO, 64)
    one, two = (
        StepResult(step=1, rows=(RowResult(SlotId(0), 0, tokens),), seconds=seconds)
        for tokens, seconds in (((5,), 0.01), ((5, 6), 0.02))
    )
    for _ in range(200):
        assert drafts.observe(1, (0, 0), one, 0.005) == 0.01
        without_s = drafts.observe(1, (1, 0), two, 0.009)
    assert without_s == pytest.approx(0.01, rel=0.02)
    told = drafts.counts["draft_plain_seconds"] / drafts.counts["draft_step_seconds"]
    assert told == pytest.approx(2 * 0.015 / 0.029, rel=0.05)


@pytest.mark.parametrize(("method", "share"), [("auto", 0.0), ("medusa=x", 1.0), ("auto,medusa=x", 0.0)])
def test_looking_for_drafts_is_no_part_of_the_price_of_plain_steps(method, share):
    """Without drafts lookups are not asked. A drafter alone is: what it takes in vain is part of the step."""
    drafts, row = Depth(Speculation.parse(method), 32), RowResult(SlotId(0), 0, (3,))
    for draft_s in (0.01, 0.002, 0.01):
        drafts._price = StepPrice()
        result = StepResult(step=0, rows=(row,), seconds=0.03 + draft_s, draft_s=draft_s)
        drafts.observe(1, (0, 0), result)
        assert drafts._price.plain_s(1) == pytest.approx(0.03 + share * draft_s)


def test_looking_for_drafts_is_part_of_the_price_of_drafts():
    drafts, row = Depth(AUTO, 32), RowResult(SlotId(0), 0, (3,))
    for num_drafts in (0, 2):
        result = StepResult(step=0, rows=(row,), seconds=0.04, draft_s=0.01)
        drafts.observe(1, (num_drafts, 0), result)
    assert drafts._price.plain_s(1) == pytest.approx(0.03)
    assert drafts._price.ratio(1, 2) > 1.3


@pytest.mark.parametrize(
    ("method", "rarest"), [("auto", 8), ("ngram", 8), ("medusa=x", 4), ("auto,medusa=x", 4)]
)
def test_rows_that_gain_nothing_are_asked_ever_more_rarely(method, rarest):
    """Asking takes the host's time; a drafter is tried by being asked."""
    machine = Machine(lambda *_: 0.0, flat(0.05), most=8)
    asked, run = [], machine.run

    def watched(plan):
        asked.append(plan.rows[0].max_drafts > 0)
        return run(plan)

    machine.run = watched
    simulate(machine, Speculation.parse(method), 1, 340)
    assert sum(asked[:12]) == 12
    assert sum(asked[-80:]) == 80 // rarest


@pytest.mark.parametrize("is_late", [False, True])
def test_a_lookup_is_left_where_it_gains_nothing_and_a_drafter_where_it_loses(is_late):
    """What else a drafter would draft is not known."""
    drafts = Depth(AUTO, 32)
    for _ in range(60):
        drafts._price.observe(1, 1, 1.51)
        drafts._price.observe(1, 0, 1.0)
    drafts._is_checking, found = True, [(-0.5, 0)]
    assert LOSS < 1.5 / 1.51 < 1.0
    assert drafts._best(found, [is_late], 1, 8) == (found if is_late else [])


def test_plain_steps_are_measured_often_while_few_were():
    """One that was slow by chance would make drafts look cheap for a whole `STALE`."""
    price, due = StepPrice(), []
    price.observe(16, 0, 1.25)
    for step in range(1, 1500):
        if price.is_plain_due(16, is_often=True):
            due.append(step)
            price.observe(16, 0, 1.0)
        else:
            assert not price.is_plain_due(16, is_often=False)
            price.observe(16, 5, 1.15)
    assert due[:5] == [5, 14, 27, 44, 65]
    assert max(b - a for a, b in pairwise(due)) == STALE + 1
    assert price.ratio(16, 5) == pytest.approx(1.15, rel=0.03)


def test_the_first_plain_steps_beside_drafts_that_pay_come_soon():
    machine = Machine(lambda *_: 1.0, flat(0.05), most=8)
    simulate(machine, AUTO, 1, 300)
    plain = [step for step, num_drafts in enumerate(machine.depths) if not num_drafts]
    gaps = [b - a for a, b in pairwise(plain)]
    assert max(plain[:5]) < STALE
    assert max(gaps[-3:]) > 4 * min(gaps[:5])
