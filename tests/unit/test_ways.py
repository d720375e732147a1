"""A lookup beside a drafter that computes: each row checks the drafts that promise more, in virtual time."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigError, RequestError
from headrace.base.ids import SlotId
from headrace.base.step import RowResult, StepResult
from headrace.base.tasks import Speculation
from headrace.engine.drafts.wish import offered, reason_of
from headrace.host.sched.drafts.chooser import LASTING
from headrace.host.sched.drafts.depth import GAIN, Depth
from headrace.host.sched.drafts.track import Track
from headrace.host.sched.drafts.trial import AGAIN, FIRST, MOST, OWN, Trial
from headrace.host.sched.drafts.ways import Making, Savings, is_better, passes_of, pays, worth
from tests.kit.mixed import METHODS, MixedMachine, Rate, serve


def always(rate: float) -> Rate:
    return lambda _: rate


def phases(copied: int, new: int) -> Rate:
    """Texts that are copied, with new passages between: there the lookup finds nothing."""
    return lambda at: 0.95 if at % (copied + new) < copied else -1.0


def speeds(lookup: Rate, drafter: Rate, **sizes: int) -> tuple[dict[str, float], MixedMachine, int]:
    """Tokens per second of each method; the machine of both, and how often it turned."""
    num_prompt = sizes.pop("num_prompt", 2)
    return compare(partial(MixedMachine, lookup, drafter, num_prompt=num_prompt), "draft=x", **sizes)


def compare(
    make: Callable[[], MixedMachine], drafter: str, **sizes: int
) -> tuple[dict[str, float], MixedMachine, int]:
    """The same of machines that are made so."""
    machines = {name: make() for name in METHODS}
    served = {
        name: serve(machines[name], method.replace("draft=x", drafter), **sizes)
        for name, method in METHODS.items()
    }
    return (
        {name: speed for name, (speed, _) in served.items()},
        machines["both"],
        served["both"][1].ways.num_turns,
    )


@pytest.mark.parametrize("rate", [0.95, 0.6])
@pytest.mark.parametrize("num_prompt", [2, 400])
def test_a_text_that_copies_is_drafted_by_the_lookup(rate, num_prompt):
    """And the drafter reads nothing of it."""
    found, machine, turns = speeds(always(rate), always(0.9), num_prompt=num_prompt, output=400, requests=4)
    assert found["both"] >= 0.97 * found["lookup"] > found["drafter"]
    assert machine.num_read == 0 or num_prompt < 16
    assert turns <= 4


@pytest.mark.parametrize("lookup", [-1.0, 0.1], ids=["nothing", "junk"])
def test_a_text_that_repeats_nothing_is_drafted_by_the_drafter(lookup):
    found, machine, turns = speeds(always(lookup), always(0.9))
    assert found["both"] >= 0.96 * found["drafter"] > 1.5 * found["lookup"]
    assert machine.kinds.count("d") > 500
    assert turns <= 3


def test_prompts_are_read_from_the_first_row_on_where_the_answers_before_repeated_nothing():
    found, machine, _ = speeds(always(-1.0), always(0.9), num_prompt=100, output=160, requests=12)
    assert found["both"] >= 0.95 * found["drafter"] > 1.3 * found["lookup"]
    assert "".join(machine.kinds[-160:]).count("-") < 12


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("lookup", [-1.0, 0.1, 0.8], ids=["nothing", "junk", "copies"])
def test_a_drafter_that_is_wrong_is_tried_seldom(lookup, rows):
    """SP-6."""
    found, machine, turns = speeds(always(lookup), always(0.1), rows=rows, requests=rows, warm=2000)
    assert found["both"] >= 0.98 * found["lookup"]
    assert machine.kinds.count("d") <= 24
    assert turns <= 12 * rows


def test_a_drafter_that_becomes_right_is_found_again():
    """In answers that begin: the longer one goes on, the more of it is unread."""
    machine = MixedMachine(always(-1.0), lambda _: 0.95 if len(machine.kinds) > 1500 else 0.0)
    serve(machine, METHODS["both"], requests=80, output=100)
    assert machine.kinds[:1500].count("d") <= 24
    assert machine.kinds[-300:].count("d") > 200


@pytest.mark.parametrize(("copied", "new"), [(60, 10), (20, 60), (200, 200), (8, 8)])
def test_texts_that_copy_and_go_on_by_turns_are_no_slower_than_with_the_better_of_both(copied, new):
    """Short passages are not worth what the drafter would read behind the lookup; long ones are."""
    found, machine, turns = speeds(phases(copied, new), always(0.9), num_prompt=200)
    best = max(found["lookup"], found["drafter"])
    assert found["both"] >= 0.95 * best
    assert turns <= 2 * 2000 // (copied + new) + 4
    if (copied, new) == (60, 10):
        assert machine.num_read == 0
    if (copied, new) == (200, 200):
        assert found["both"] > 1.05 * best


@pytest.mark.parametrize("seed", range(4))
def test_nothing_swings_where_both_are_worth_the_same(seed):
    machine = MixedMachine(always(0.5), always(0.9), seed=seed)
    speed, drafts = serve(machine, METHODS["both"])
    assert drafts.ways.num_turns <= 8  # of about 1000 rows
    alone = [
        serve(MixedMachine(always(0.5), always(0.9), seed=seed), METHODS[m])[0] for m in ("lookup", "drafter")
    ]
    assert alone[0] == pytest.approx(alone[1], rel=0.06), alone
    assert speed >= 0.95 * min(alone)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_pass_that_all_rows_share_is_worth_it(rows):
    """With one row for each pass it would not be."""
    make = partial(MixedMachine, always(-1.0), always(0.9), is_shared=True)
    found, machine, _ = compare(make, "draft=x", rows=rows, requests=rows, output=1000)
    assert found["both"] >= 0.95 * found["drafter"] > 1.05 * found["lookup"]
    assert min(machine.late_rows.values()) > 200


def test_one_row_does_not_have_a_pass_at_the_price_of_all():
    """The others copy, and their steps would wait for it; when they are over it has the drafter."""
    slots = {slot: (always(0.95), always(0.9)) for slot in range(3)}
    make = partial(MixedMachine, always(-1.0), always(0.9), is_shared=True, of_slots=slots)
    found, machine, turns = compare(make, "draft=x", rows=4, requests=4, output=1000)
    assert found["both"] > 1.3 * found["lookup"]
    assert set(machine.late_rows) == {3}
    assert turns <= 4


def test_a_trial_ends_where_the_drafter_is_wrong_for_one_of_five():
    slots = {slot: (always(-1.0), always(0.9)) for slot in range(4)}
    make = partial(MixedMachine, always(-1.0), always(0.0), of_slots=slots, is_shared=True, reads=False)
    found, machine, _ = compare(make, "medusa=x", rows=5, requests=5, output=600)
    assert found["both"] >= 0.97 * found["drafter"]
    others = [machine.late_rows[slot] for slot in range(5)]
    wrong = others.pop(4)
    assert wrong <= 12
    assert min(others) > 100


def test_a_trial_ends_where_only_first_drafts_are_right():
    make = partial(MixedMachine, always(-1.0), always(0.0), places=(0.62,) + (0.0,) * 9, reads=False)
    found, machine, _ = compare(make, "medusa=x", output=2000)
    assert found["both"] >= 0.97 * found["drafter"] > 1.05 * found["lookup"]
    assert machine.num_made <= 1.2 * machine.late_rows[0]


def test_drafters_that_read_nothing_draft_behind_a_long_prompt():
    make = partial(MixedMachine, phases(20, 20), always(0.9), num_prompt=3000, reads=False)
    found, machine, _ = compare(make, "medusa=x")
    assert found["both"] > 1.05 * max(found["lookup"], found["drafter"])
    assert "".join(machine.kinds).count("d") > 100


def test_drafters_that_read_nothing_draft_in_short_passages_too():
    """Where one that reads would not pay, as above: what it need not read is not held against it."""
    make = partial(MixedMachine, phases(60, 10), always(0.9), num_prompt=200, reads=False)
    found, machine, _ = compare(make, "medusa=x")
    assert found["both"] > 1.03 * max(found["lookup"], found["drafter"])
    assert "".join(machine.kinds).count("d") > 50


def test_no_prompt_is_read_for_a_try_where_the_answer_ends_soon():
    """However much time there was."""
    machine = MixedMachine(always(-1.0), always(0.0), num_prompt=200)
    serve(machine, METHODS["both"], requests=1500, output=3)
    assert machine.time_s > 40.0
    assert machine.num_read == 0


def test_a_trial_is_bounded():
    trial, track, other = Trial(), Track(most=4, depth=None), Track(most=4, depth=None)
    for _ in range(OWN):
        assert trial.favours(track)
        trial.judge(track, is_right=True)
    assert not trial.favours(track)
    assert trial.favours(other)
    for _ in range(MOST - OWN):
        assert trial.is_on
        trial.judge(track, is_right=True)
    assert not trial.is_on
    assert not trial.favours(other)
    for rows, begin in ((FIRST, Trial), (AGAIN, trial.again)):
        some = begin() or trial
        for _ in range(int(rows)):
            assert some.is_on
            some.judge(other, is_right=False)
        assert not some.is_on
    first = Trial()
    first.again()
    assert not first.is_retry  # nothing is known of the drafter yet
    trial.again()
    assert trial.favours(track)
    assert trial.is_retry
    trial.end(is_proven=True)
    assert not trial.is_on
    assert not trial.is_retry


def test_what_was_read_was_not_in_vain_where_drafting_lasts(monkeypatch):
    """And again each time that it lasted so long; it is no longer a try then."""
    drafts, repaid = Depth(Speculation.parse(METHODS["both"]), 32), list[int]()
    monkeypatch.setattr(drafts._reading, "repay", lambda: repaid.append(drafts.ways._num_with))
    drafts.ways._trial.is_retry = True
    for _ in range(2 * LASTING):
        drafts.ways._count(True)
    assert repaid == [LASTING, 2 * LASTING]
    assert not drafts.ways._trial.is_retry


@pytest.mark.parametrize(("method", "price_s"), [("auto,eagle=x", 0.02), ("eagle=x", 0.03)])
def test_what_a_drafter_takes_in_behind_a_lookup_is_no_part_of_the_price_of_a_step(method, price_s):
    drafts = Depth(Speculation.parse(method), 32)
    drafts.observe(
        1, (0, 0), StepResult(step=0, rows=(RowResult(SlotId(0), 0, (3,)),), seconds=0.03, draft_s=0.01)
    )
    assert drafts._price.plain_s(1) == pytest.approx(price_s)


def test_worth_of_drafts():
    assert worth([], [1.0]) == 1.0
    assert worth([0.5, 0.25], [1.0, 1.25, 2.0]) == pytest.approx(1.5 / 1.25)
    assert worth([0.5, 0.25], [1.0, 1.25, 2.0], is_fixed=True) == pytest.approx(1.75 / 2.0)
    assert worth([0.1], [1.0, 2.0]) == 1.0  # none is checked


def test_the_other_kind_must_be_worth_more_by_a_margin():
    assert [is_better(late, 2.0, is_late=False) for late in (2.0, 2.09, 2.11)] == [False, False, True]
    assert [is_better(late, 2.0, is_late=True) for late in (1.9, 1.91, 2.0)] == [False, True, True]
    assert not is_better(1.0, 1.0, is_late=True)


def test_a_pass_of_a_drafter_serves_all_rows():
    making = Making()
    assert making.pass_s(4, 0.02) == pytest.approx(0.004)
    assert making.pass_s(0, 0.02) == 0.0
    making.observe([4, 4], 0.016)
    assert [making.pass_s(rows, 1.0) for rows in (1, 4, 8)] == [pytest.approx(0.008)] * 3
    making.observe([8], 0.012)
    assert making.pass_s(8, 1.0) == pytest.approx(0.012)  # seen: it costs more
    assert making.pass_s(4, 1.0) == pytest.approx(0.008)
    making.observe([4, 1], 0.008)
    assert making.pass_s(1, 1.0) == pytest.approx(0.004)  # not seen before: all of the error
    assert making.pass_s(4, 1.0) == pytest.approx(0.0072)
    making.observe([4, 4], 16.0)
    making.observe([4], 0.0)  # a clock may stand still
    making.observe([], 1.0)
    assert making.pass_s(4, 1.0) < 0.01


def test_passes_end_with_the_row_of_most_drafts():
    assert passes_of([]) == []
    assert passes_of([3, 1, 0, 1]) == [3, 1, 1]


def test_savings_count_what_would_have_been_read():
    savings, none = Savings(), Savings()
    savings.learn(1, 0.5)
    assert savings.each(none, 0.1) == pytest.approx(0.5 / 4)
    savings.learn(5, 0.0)
    kept = 0.98**5
    expected = (0.5 * kept - 0.1 * 5) / (3 + kept + 5)
    assert savings.each(none, 0.1) == pytest.approx(expected)
    assert Savings().each(savings, 0.1) == pytest.approx((0.5 * kept - 0.5) / (kept + 5))
    assert not pays(0.0, 0.0, 10, 1000)
    assert pays(4.8, 0.1, 0, 1000)
    assert not pays(4.9, 0.1, 0, 1000)
    assert pays(7.7, 0.1, 10, 1000)
    assert not pays(0.8, 0.1, 10, 10)


@pytest.mark.parametrize(
    ("text", "method", "depth", "source", "beside"),
    [
        ("auto,draft=m", "draft", None, "m", "auto"),
        ("suffix,early-exit=4,depth=3", "early-exit", 3, "4", "suffix"),
        ("ngram,draft=/a=b, c/x,depth=2", "draft", 2, "/a=b, c/x", "ngram"),
        ("auto,draft", "draft", None, "", "auto"),
        ("auto,eagle,depth=2", "eagle", 2, "", "auto"),
    ],
)
def test_forms_with_a_lookup_beside(text, method, depth, source, beside):
    found = Speculation.parse(text)
    assert found == Speculation(method, depth, source, beside)
    assert found.is_late
    assert found.lookup == beside
    assert found.names == (beside, method)


@pytest.mark.parametrize(
    "text", ["auto,ngram", "off,draft=x", "draft,auto", ",draft=x", "draft,eagle=x", "auto,ngram,draft=x"]
)
def test_other_joined_forms_are_refused(text):
    with pytest.raises(RequestError, match="must be METHOD or METHOD,depth=K"):
        Speculation.parse(text)


def test_lookups_come_first():
    with pytest.raises(ConfigError, match="lookups come first, as in auto,draft=x"):
        offered("draft=x,auto")
    with pytest.raises(ConfigError, match=r"must be one of off, auto, ngram, suffix, .*, got 'letters'"):
        offered("letters,draft=x")
    with pytest.raises(ConfigError, match="draft needs draft=MODEL"):
        offered("auto,draft")
    assert "the lookup drafts or draft" in reason_of(offered("auto,draft=x"))


def in_order(drafts: Depth, found: list[tuple[float, int]], late: list[bool]) -> list[float]:
    """Tokens over cost of the first 1, 2 .. drafts, each computed by itself."""
    rows, rates = len(late), list[float]()
    ratios, made = drafts._price.ratios(rows, len(found)), drafts.ways.makings(rows, rows)
    for n in range(1, len(found) + 1):
        counts = Counter(i for _, i in found[:n] if late[i])
        making = sum(made[share] for share in passes_of(list(counts.values())))
        rates.append((rows - sum(chance for chance, _ in found[:n])) / (ratios[n] + making))
    return rates


@pytest.mark.parametrize("dear", [0.1, 1.0, 4.0])
@given(seed=st.integers(0, 2**32))
def test_a_step_checks_the_likeliest_drafts_of_all_or_of_lookups_alone(dear, seed):
    """Whichever give more tokens for what they cost; a pass costs all rows of the step, whoever it is for."""
    rng, rows = Random(seed), 3
    drafts, late = Depth(Speculation.parse("auto,draft=x"), 32), [rng.random() < 0.5 for _ in range(rows)]
    drafts.ways._trial.end()
    for num in (0, 2, 6, 12):
        drafts._price.observe(rows, num, 0.01 * (1 + 0.05 * num * rng.random()))
    for share in (1, 3):
        drafts.ways._making.observe([share], 0.01 * dear * rng.random())
    chances = [[rng.uniform(0.3, 1.0) ** (k + 1) for k in range(rng.randint(0, 4))] for _ in range(rows)]
    found = sorted((-chance, i) for i, each in enumerate(chances) for chance in each)
    lookups = [(chance, i) for chance, i in found if not late[i]]
    best = max([1.0, *in_order(drafts, found, late), *in_order(drafts, lookups, late)])
    chosen = drafts._best(found, late, rows, 32)
    assert bool(chosen) == (best >= GAIN * rows)
    if chosen:
        assert chosen in (found[: len(chosen)], lookups[: len(chosen)])
        assert in_order(drafts, chosen, late)[-1] == pytest.approx(best)


@pytest.mark.parametrize(
    ("wish", "offers", "gives"),
    [
        ("off", "auto,draft=x", "off"),
        ("auto", "auto,draft=x", "auto"),
        ("ngram", "auto,draft=x,depth=4", "ngram,depth=4"),
        ("draft", "auto,draft=x,depth=4", "draft=x,depth=4"),
        ("auto,draft,depth=2", "auto,draft=x,depth=4", "auto,draft=x,depth=2"),
        ("suffix,draft=x", "auto,draft=x", "suffix,draft=x"),
        ("suffix", "suffix,draft=x", "suffix"),
    ],
)
def test_a_request_wishes_within_what_the_engine_has(wish, offers, gives):
    assert Speculation.parse(wish).within(Speculation.parse(offers)) == Speculation.parse(gives)


@pytest.mark.parametrize(
    ("wish", "offers", "says"),
    [
        ("auto,draft", "draft=x", "auto,draft was asked for, but only draft runs here"),
        ("auto,draft", "auto", "only auto runs here; start with --speculate auto,draft=MODEL"),
        ("ngram", "suffix,draft=x", "only suffix and draft run here; .* or ask for suffix or draft or off"),
        ("medusa", "auto,draft=x", "only auto and draft run here"),
        ("draft=y", "auto,draft=x", "draft was started with something else here"),
        ("auto,draft", "off", "auto,draft was asked for, but speculation is off here"),
        ("auto,draft,depth=5", "auto,draft=x,depth=4", "at most 4 here, got 5"),
    ],
)
def test_a_wish_beyond_it_is_refused(wish, offers, says):
    with pytest.raises(RequestError, match=says):
        Speculation.parse(wish).within(Speculation.parse(offers))
