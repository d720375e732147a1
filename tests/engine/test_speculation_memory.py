"""Drafts from earlier answers: the same tokens as without, and never from the answers of others."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import RequestId
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.terms import Tenant, Terms
from headrace.compute.spec.proposers.suffix import Suffix
from tests.engine.test_speculation import METHODS, scripted_rig
from tests.kit.engine import Drive, random_requests, random_shape, rig
from tests.kit.solo import check_against_solo, repetitive

TENANTS = tuple(Terms(tenant=Tenant(name=name)) for name in ("", "anna", "ben"))
WISHES = (None, None, None, "off", "suffix,depth=3", "auto,depth=1")


def waves(rng, requests):
    """The requests, asked three times one after the other, by tenants who share tasks and seeds."""
    found, arrivals = [], {}
    terms = {r.leader or r.request_id: rng.choice(TENANTS) for r in requests}
    for wave in range(3):
        wish = {r.leader or r.request_id: rng.choice(WISHES) for r in requests}
        for request in requests:
            leader = request.leader or request.request_id
            name = f"{request.request_id}/{wave}"
            arrivals[name] = 25 * wave
            found.append(
                replace(
                    request,
                    request_id=name,
                    leader=request.leader and f"{request.leader}/{wave}",
                    terms=terms[leader] if wave < 2 else rng.choice(TENANTS),
                    sampling=replace(request.sampling, speculate=wish[leader]),
                )
            )
    return found, arrivals


def check(subject, alone, seed, method, *, remembers=True):
    """A random schedule that remembers answers against solo runs; returns how many drafts were checked."""
    rng = random.Random(seed)
    shape = random_shape(rng)
    capacity = shape["num_blocks"] * shape["block_size"]
    requests = repetitive(rng, random_requests(rng, min(capacity, 64), structured=0.1, most_output=24))
    requests, arrivals = waves(rng, requests)
    if method != "auto":
        requests = [replace(r, sampling=replace(r.sampling, speculate=None)) for r in requests]
        method += rng.choice(["", "", *(f",depth={k}" for k in range(1, 9))])
    tokens = rng.choice([40, 200, 5000])
    core = subject.core(**shape, speculate=method, memory_tokens=tokens if remembers else 0)
    aborts = {r.request_id: rng.randint(0, 60) for r in requests if rng.random() < 0.1}
    lives = Drive(core).run(requests, arrivals=arrivals, aborts=aborts)
    check_against_solo(lives, requests, alone, shape, aborts)
    return int(core.stats().counters.get("drafts_checked", 0))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_any_schedule_that_remembers_answers_equals_plain_solo_runs(method, seed):
    """SP-1."""
    check(rig("native", 1), rig("native", 1), seed, method)


def test_fixed_schedules_check_more_drafts_where_answers_are_remembered():
    """The suite above would pass without any."""
    subject = rig("native", 1)
    with_memory, without = (
        sum(check(subject, subject, seed, "suffix", remembers=remembers) for seed in range(8))
        for remembers in (True, False)
    )
    assert with_memory > 2 * without > 0


def task(name, **more):
    """Its answer is 5 6 7 .. 24, of which nothing repeats: only earlier answers can be drafted from."""
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=20, speculate=more.pop("speculate", None))
    terms = Terms(tenant=Tenant(name=more.pop("tenant", "anna")))
    return Request(request_id=RequestId(name), prompt_ids=(3, 4), sampling=sampling, terms=terms, **more)


class Told:
    """An engine over the scripted model that notes what is drafted."""

    def __init__(self, memory_tokens=1000, speculate="suffix,depth=4"):
        core = scripted_rig().core(speculate=speculate, memory_tokens=memory_tokens, slots=2)
        self.drive, self.drafts = Drive(core), []
        drafting = core.runner._parts.drafting
        assert drafting is not None
        propose = drafting.propose

        def note(wanted):
            counts = propose(wanted)
            self.drafts.append([drafting.held.get(slot, []) for slot, _ in wanted])
            return counts

        drafting.propose = note

    def run(self, request, **more):
        """Drafts of each row of a request, one after the other; its answer is what it is without drafts."""
        self.drafts.clear()
        life = self.drive.run([request], **more)[request.request_id]
        assert life.tokens == list(range(5, 25))[: len(life.tokens)]
        return [drafts for (drafts,) in self.drafts]


def test_a_task_that_comes_again_is_drafted_from_its_first_answer():
    told = Told()
    assert told.run(task("a")) == [[]] * 20
    assert told.run(task("b"))[:2] == [[6, 7, 8, 9], [11, 12, 13, 14]]
    assert told.drive.core.stats().counters["drafts_accepted"] == 15


@pytest.mark.parametrize("other", [{"tenant": "ben"}, {"tenant": ""}, {"salt": "x"}])
def test_nothing_is_drafted_from_the_answers_of_others(other):
    told, alone = Told(), Told()
    told.run(task("a"))
    told.run(task("b"))
    assert told.run(task("c", **other)) == alone.run(task("c", **other)) == [[]] * 20
    assert told.run(task("d", **other))[0] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (task("a", speculate="off"), {}),
        (task("a"), {"aborts": {"a": 12}}),
    ],
)
def test_only_finished_answers_are_remembered_and_not_without_speculation(first, more):
    told = Told()
    told.run(first, **more)
    assert told.run(task("b")) == [[]] * 20


def test_an_answer_that_a_stop_string_ends_is_remembered():
    told = Told()
    core = told.drive.core
    core.add((task("a"),))
    for _ in range(8):
        core.step()
    core.finish((RequestId("a"),), FinishReason.STOP)
    assert told.run(task("b"))[:3] == [[6, 7, 8, 9], [11, 12], []]


@pytest.mark.parametrize(("memory_tokens", "is_kept"), [(0, False), (28, False), (29, True)])
def test_the_bound_counts_an_answer_and_its_edge_and_whose_it_is(memory_tokens, is_kept):
    told = Told(memory_tokens)
    told.run(task("a"))
    assert (told.run(task("b"))[0] != []) == is_kept


def test_an_answer_that_was_preempted_is_remembered_once_and_whole():
    subject = scripted_rig()
    core = subject.core(
        speculate="suffix,depth=4",
        memory_tokens=1000,
        slots=4,
        num_blocks=8,
        block_size=4,
        prefix_cache=False,
    )
    requests = [task(f"r{i}") for i in range(4)]
    lives = Drive(core).run(requests)
    assert sum(life.preempted for life in lives.values()) > 0
    drafting = core.runner._parts.drafting
    assert drafting is not None
    (proposer,) = drafting._rememberers
    assert isinstance(proposer, Suffix)
    memory = proposer._memory
    assert memory is not None
    assert memory.num_tokens <= 29
    Drive(core).run([task("again")])
    assert memory.num_tokens == 29
