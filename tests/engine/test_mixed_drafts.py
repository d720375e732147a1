"""A lookup beside a drafter that computes: the same answers as without, whichever of them each row takes.

A drafter must read what was drawn while the lookup drafted. Where it does not, no answer tells, but its
drafts agree less: so those of a drafter that is the target are counted, and all of them must agree.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from tests.engine.test_draft_model import changed_rig
from tests.engine.test_heads import ask, known, random_heads
from tests.engine.test_speculation import HARD
from tests.kit.engine import Drive, Rig, rig
from tests.kit.heads import KINDS
from tests.kit.scripted import scripted_checkpoint
from tests.kit.solo import check_drafts
from tests.unit.test_draft_reasons import Told

assert known is not None  # fixtures
assert random_heads is not None
WISHES = (None, None, "off", "auto", "ngram", "draft", "auto,draft", "suffix,draft")


def dice(seed: int):
    """Lets a die choose the kind of drafts of every row that can have both."""
    rng = random.Random(seed)

    def tune(core) -> None:
        ways = core.scheduler.drafts.ways
        ways._is_late = lambda seq, *_: seq.num_late > 0 and rng.random() < 0.5

    return tune


def of_method(counts, method: str) -> tuple[int, int]:
    """Drafts checked and accepted."""
    found = (int(counts.get(f"drafts_by_{method}_{name}", 0)) for name in ("checked", "accepted"))
    return next(found), next(found)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_lookups_beside_another_draft_model_equals_plain_solo_runs(seed):
    """SP-1."""
    near = changed_rig("near", 0.02)
    check_drafts(
        rig("native", 1), rig("native", 1), seed, "auto,draft=x", draft=near, wishes=WISHES, tune=dice(seed)
    )


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_in_any_schedule_a_draft_model_that_is_the_target_is_right_beside_lookups(seed):
    """SP-3: what lookups drafted is read before it drafts again, from the blocks where it belongs."""
    subject, counts = rig("native", 1), {}
    check_drafts(
        subject, subject, seed, "auto,draft=x", draft=subject, counts=counts, wishes=WISHES, tune=dice(seed)
    )
    checked, accepted = of_method(counts, "draft")
    assert checked == accepted


def test_fixed_schedules_check_drafts_of_all_methods():
    """The suites here would pass without."""
    subject, total = rig("native", 1), dict.fromkeys(("draft", "suffix"), 0)
    for seed in range(25):
        counts = {}
        check_drafts(subject, subject, seed, "auto,draft=x", draft=subject, counts=counts, tune=dice(seed))
        for method in total:
            total[method] += of_method(counts, method)[0]
    assert total["draft"] > 100, total
    assert total["suffix"] > 25, total


def test_fixed_schedules_check_drafts_of_an_early_exit():
    """The suite below would pass without."""
    subject, total = rig("native", 1), 0
    for seed in range(12):
        counts = {}
        check_drafts(subject, subject, seed, "suffix,early-exit=2", counts=counts, tune=dice(seed))
        total += of_method(counts, "early-exit")[0]
    assert total > 50


@pytest.mark.parametrize("count", [1, 2])
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_lookups_beside_an_early_exit_equals_plain_solo_runs(count, seed):
    subject, counts = rig("native", 1), {}
    check_drafts(subject, subject, seed, f"suffix,early-exit={count}", counts=counts, tune=dice(seed))
    checked, accepted = of_method(counts, "early-exit")
    assert count == 1 or checked == accepted


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_with_lookups_beside_heads_equals_plain_solo_runs(random_heads, kind, seed):
    subject = rig("native", 1)
    check_drafts(subject, subject, seed, f"ngram,{random_heads[kind]}", tune=dice(seed))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_kinds_that_are_chosen_by_the_clock_change_nothing(seed):
    check_drafts(
        rig("native", 2), rig("native", 1), seed, "auto,draft=x", draft=rig("native", 2), wishes=WISHES
    )


@pytest.mark.parametrize("kind", ["medusa", "eagle, by features"])
def test_heads_that_know_the_target_are_right_beside_lookups(known, kind):
    """SP-3, SP-8: they see what passes compute that check drafts of others."""
    subject, heads = known
    prompt = (*range(3, 40), *range(3, 20))
    asked = replace(ask("r"), prompt_ids=prompt, sampling=replace(ask("r").sampling, max_tokens=150))
    core = subject.core(num_blocks=64, dtype="f32", speculate=f"auto,{heads[kind]},depth=4")
    dice(3)(core)
    assert Drive(core).run([asked])["r"].tokens == list(range(20, 170))
    counts = core.stats().counters
    checked, accepted = of_method(counts, kind.partition(",")[0])
    assert checked == accepted > 40
    assert of_method(counts, "suffix")[1] > 5


@pytest.mark.parametrize("sampling", HARD, ids="-".join)
def test_sampled_drafts_of_both_are_checked_as_the_request_draws(sampling):
    subject = rig("native", 1)
    prompt = tuple(range(3, 13)) * 2
    params = SamplingParams(seed=4, max_tokens=60, **sampling)
    asked = Request(request_id=RequestId("r"), prompt_ids=prompt, sampling=params)
    core = subject.core(draft=subject, dtype="f32", speculate="auto,draft=x,depth=3")
    dice(5)(core)
    assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
    checked, accepted = of_method(core.stats().counters, "draft")
    assert checked == accepted > 10


def numbers(end: int) -> Rig:
    """3 4 5 .. end - 1, and then from 3 on again: a text that repeats itself after that many tokens."""
    return Rig(scripted_checkpoint({i: i + 1 if i < end - 1 else 3 for i in range(3, end)}), "native", 1, 256)


def with_prices(core, make_s: float) -> None:
    """Steps take virtual time: 10 ms, 0.4 more a draft, `make_s` more for each that is made."""
    run = core.runner.run

    def timed(plan):
        result = run(plan)
        unmade = sum(row.num_unmade for row in result.rows)
        late = sum(row.num_drafts for row in plan.rows if row.is_late) - unmade
        checked = sum(row.num_drafts for row in plan.rows) - unmade
        draft_s = make_s * late + 0.0001 * unmade
        return replace(result, seconds=0.01 + 0.0004 * checked + draft_s, draft_s=draft_s)

    core.runner.run = timed


@pytest.mark.parametrize(("end", "chosen"), [(9, "suffix"), (230, "draft")], ids=["repeats", "new"])
def test_texts_that_repeat_take_the_lookup_and_others_the_drafter(end, chosen):
    """Both are always right where they draft, and a draft that is made takes a fifth of a step."""
    subject = numbers(end)
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=200)
    asked = Request(request_id=RequestId("r"), prompt_ids=(3, 4), sampling=sampling)
    core = subject.core(draft=subject, dtype="f32", speculate="auto,draft=x")
    with_prices(core, 0.002)
    assert Drive(core).run([asked])["r"].answer == subject.solo(asked).answer
    counts = core.stats().counters
    checked = {method: of_method(counts, method)[0] for method in ("suffix", "draft")}
    assert checked.pop(chosen) > 120
    assert max(checked.values()) <= 20  # at first nothing is known, and nothing repeats
    assert core.scheduler.drafts.ways.num_turns <= 2
    assert counts["steps"] < 70


def test_a_request_may_name_one_of_both():
    subject = numbers(9)
    wishes = {"draft": {"draft"}, "auto": {"suffix"}, "ngram": {"ngram"}, "off": set(), "ngram,draft": None}
    core = subject.core(draft=subject, dtype="f32", speculate="auto,draft=x,depth=4")
    for wish, methods in wishes.items():
        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=40, speculate=wish)
        drive = Told(core)
        drive.run([Request(request_id=RequestId("r"), prompt_ids=(3, 4), sampling=sampling)])
        report = drive.reports["r"]
        found = {name: counts for name, *counts in report.by_method}
        assert methods is None or set(found) == methods
        assert sum(accepted for _, accepted in found.values()) == sum(report.accepted_by_place)
        assert report.body()["by_method"] == {
            name: {"drafted": checked, "accepted": accepted} for name, (checked, accepted) in found.items()
        }
