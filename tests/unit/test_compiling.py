"""Grammars compiled beside the loop: time limits, aborts, panics, the wire."""

from queue import SimpleQueue
from threading import Event, Thread
from time import sleep
from typing import Any, cast

import pytest

from headrace.base.errors import OverloadError, RequestError
from headrace.base.grammar import Grammar
from headrace.base.ids import RequestId
from headrace.base.messages import AddGroup
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import BeamSearch
from headrace.base.terms import ANYBODY, Tenant, Terms
from headrace.engine.grammars import compiling
from headrace.engine.grammars import turns as turns_module
from headrace.engine.grammars.compiling import Compiled, CompileQueue
from headrace.engine.grammars.turns import Turns
from headrace.engine.intake import Ask, Intake
from tests.kit.scripted import text_of


class Made(str):
    """A matcher, by the name of its request."""

    __slots__ = ()
    num_bytes = 1000


class Fake:
    """Compiles what it is told: `slow` waits, `panic` fails like the library, `nap` takes a moment."""

    def __init__(self) -> None:
        self.go = Event()
        self.seen: list[str] = []
        self.restocked: list[str] = []
        self.ahead_bytes = 0

    def prepare(self) -> None: ...

    def restock(self, requests: Any) -> None:
        self.restocked.append(requests[0].request_id)

    def compile(self, requests: Any) -> tuple[Made, ...]:
        source = requests[0].sampling.structured.source
        self.seen.append(source)
        if source == "slow":
            self.go.wait(20)
        if source == "panic":
            raise BaseException("the library gave up")
        if source == "nap":
            sleep(0.1)
        return tuple(Made(r.request_id) for r in requests)


A, B, HEAVY = Tenant(name="a"), Tenant(name="b"), Tenant(name="heavy", weight=2.0)


def group(
    name: str, source: str, count: int = 1, tenant: Tenant = ANYBODY, *, later: bool = False
) -> AddGroup:
    sampling = SamplingParams(structured=Grammar.regex(source), seed=1)
    ids = [f"{name}{i}" for i in range(count)]
    terms = Terms(tenant=tenant, is_background=later)
    return AddGroup(
        requests=tuple(
            Request(request_id=cast("Any", i), prompt_ids=(1,), sampling=sampling, terms=terms) for i in ids
        )
    )


@pytest.fixture
def fake():
    made = Fake()
    yield made
    made.go.set()


def start(fake: Fake, limit_s: float = 0.1) -> tuple[CompileQueue, "SimpleQueue[Compiled]"]:
    ends: SimpleQueue[Compiled] = SimpleQueue()
    return CompileQueue(cast("Any", fake), ends.put, limit_s), ends


def test_one_that_takes_too_long_is_refused_and_the_next_goes_on(fake):
    queue, ends = start(fake)
    queue.start(group("a", "slow"))
    queue.start(group("b", "x", 2))
    slow, quick = ends.get(timeout=10), ends.get(timeout=10)
    assert isinstance(slow.error, RequestError)
    assert "longer than 0.1 s" in slow.error.message
    assert queue.claim(slow)[1] == ()
    requests, matchers = queue.claim(quick)
    assert [r.request_id for r in requests] == list(matchers) == ["b0", "b1"]


def test_many_that_are_stuck_hold_off_new_ones(fake, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_STUCK", 2)
    queue, ends = start(fake, 0.02)
    for name in "abc":
        queue.start(group(name, "slow"))
    told = [ends.get(timeout=10).error for _ in range(3)]
    assert [type(e) for e in told] == [RequestError, RequestError, OverloadError]
    assert fake.seen == ["slow", "slow"]


def test_a_panic_of_the_library_fails_its_request_only(fake):
    queue, ends = start(fake, 10)
    queue.start(group("a", "panic"))
    queue.start(group("b", "x"))
    assert "the library gave up" in str(ends.get(timeout=10).error)
    assert ends.get(timeout=10).error is None


def test_who_leaves_while_it_compiles_is_not_queued(fake):
    queue, ends = start(fake, 10)
    queue.start(group("a", "slow", 3))
    queue.start(group("b", "never"))
    queue.drop([RequestId(name) for name in ("a1", "b0", "unknown")])
    assert queue.num_wanted == 2
    fake.go.set()
    requests, matchers = queue.claim(ends.get(timeout=10))
    assert [r.request_id for r in requests] == list(matchers) == ["a0", "a2"]
    queue.start(group("c", "x"))
    assert queue.claim(ends.get(timeout=10))[1] == ("c0",)
    assert "never" not in fake.seen


def test_one_tenant_with_endless_grammars_stops_itself_only(fake, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_OWN_STUCK", 1)
    queue, ends = start(fake, 0.02)
    queue.start(group("a", "slow", tenant=A))
    assert isinstance(ends.get(timeout=10).error, RequestError)
    queue.start(group("b", "x", tenant=A))
    queue.start(group("c", "x", tenant=B))
    told = {
        str(end.group.requests[0].request_id): end.error for end in (ends.get(timeout=10) for _ in range(2))
    }
    assert isinstance(told["b0"], OverloadError)
    assert told["c0"] is None


def test_a_library_that_cannot_even_begin_fails_each_request(fake, monkeypatch):
    def panic() -> None:
        raise BaseException("the vocabulary broke it")

    monkeypatch.setattr(fake, "prepare", panic)
    queue, ends = start(fake, 10)
    for name in "ab":
        queue.start(group(name, "x"))
        assert "the vocabulary broke it" in str(ends.get(timeout=10).error)


def refuse_threads(patch: pytest.MonkeyPatch, name: str) -> None:
    """The machine has no thread left for those of this name."""
    plain = Thread.start

    def start_one(self: Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        plain(self)

    patch.setattr(Thread, "start", start_one)


@pytest.mark.parametrize("name", ["headrace-grammars", "headrace-grammar"])
def test_a_machine_without_threads_refuses_a_grammar_and_takes_the_next(fake, monkeypatch, name):
    queue, ends = start(fake, 10)
    refuse_threads(monkeypatch, name)
    for _ in range(2):
        queue.start(group("a", "x"))
        end = ends.get(timeout=10)
        assert isinstance(end.error, OverloadError)
        assert "no thread left" in end.error.message
        assert [r.request_id for r in queue.claim(end)[0]] == ["a0"]
    monkeypatch.undo()
    queue.start(group("a", "x"))
    assert queue.claim(ends.get(timeout=10))[1] == ("a0",)


def wait_for(fact: Any) -> None:
    for _ in range(1000):
        if fact():
            return
        sleep(0.01)
    raise AssertionError("it never came")


def test_each_choice_has_the_limit_on_time(fake):
    queue, ends = start(fake, 0.3)
    queue.start(group("a", "nap", 5))
    assert queue.claim(ends.get(timeout=10))[1] == ("a0", "a1", "a2", "a3", "a4")


def test_the_choices_of_one_request_let_others_in_between(fake):
    queue, ends = start(fake, 10)
    queue.start(group("a", "slow", 3, tenant=A))
    wait_for(lambda: fake.seen)
    queue.start(group("b", "x", tenant=B))
    fake.go.set()
    told = [str(ends.get(timeout=10).group.requests[0].request_id) for _ in range(2)]
    assert told == ["b0", "a0"]
    assert fake.seen == ["slow", "x", "slow", "slow"]


def test_a_request_is_done_before_the_next_of_its_tenant_begins(fake):
    queue, ends = start(fake, 10)
    queue.start(group("a", "slow", 3))
    wait_for(lambda: fake.seen)
    queue.start(group("b", "x"))
    fake.go.set()
    for name in "ab":
        assert ends.get(timeout=10).group.requests[0].request_id == f"{name}0"
    assert fake.seen == ["slow", "slow", "slow", "x"]


def test_choices_that_nobody_wants_any_more_are_not_compiled(fake):
    queue, ends = start(fake, 10)
    queue.start(group("a", "slow", 3))
    wait_for(lambda: fake.seen)
    queue.drop([RequestId(f"a{i}") for i in range(3)])
    fake.go.set()
    assert queue.claim(ends.get(timeout=10)) == ((), ())
    assert fake.seen == ["slow"]
    assert queue.held_bytes == 0


def test_who_leaves_takes_its_group_along_at_once(fake):
    queue, ends = start(fake, 10)
    queue.start(group("a", "slow"))
    wait_for(lambda: fake.seen)
    queue.start(group("b", "x", 2))
    queue.start(group("c", "x"))
    queue.drop([RequestId("b0")])
    assert queue.num_waiting == 2
    queue.drop([RequestId("b1")])
    assert queue.num_waiting == 1
    fake.go.set()
    assert [queue.claim(ends.get(timeout=10))[1] for _ in range(2)] == [("a0",), ("c0",)]


def test_a_group_that_leaves_between_its_choices_frees_its_matchers(fake):
    queue, ends = start(fake, 10)
    queue.start(group("b", "nap", 3, tenant=A))
    wait_for(lambda: fake.seen)
    queue.start(group("c", "slow", tenant=B))
    wait_for(lambda: "slow" in fake.seen)
    assert queue.held_bytes == 1000
    queue.drop([RequestId(f"b{i}") for i in range(3)])
    assert queue.held_bytes == queue.num_waiting == 0
    fake.go.set()
    assert queue.claim(ends.get(timeout=10))[1] == ("c0",)


def test_a_matcher_is_made_in_advance_of_quick_grammars_only(fake, monkeypatch):
    charged: list[str] = []
    mine = [group("mine", "x")]
    plain = Turns.charge

    def charge(self: Turns, group: AddGroup, seconds: float) -> None:
        if group in mine:  # queues of other tests may still be charged
            charged.append(str(group.requests[0].request_id))
        plain(self, group, seconds)

    monkeypatch.setattr(Turns, "charge", charge)
    monkeypatch.setattr(compiling, "QUICK_S", 60.0)
    queue, ends = start(fake, 10)
    queue.start(mine[0])
    ends.get(timeout=10)
    wait_for(lambda: len(charged) == 2)
    assert charged == ["mine0", "mine0"]
    assert fake.restocked == ["mine0"]
    monkeypatch.setattr(compiling, "QUICK_S", 0.05)
    for name in "bc":  # the second's end: nothing was made after the first's
        queue.start(group(name, "nap"))
        ends.get(timeout=10)
    assert fake.restocked == ["mine0"]


def test_a_matcher_in_advance_that_takes_too_long_holds_up_nobody(fake, monkeypatch):
    monkeypatch.setattr(compiling, "RESTOCK_S", 0.02)
    monkeypatch.setattr(fake, "restock", lambda requests: fake.go.wait(20))
    queue, ends = start(fake, 10)
    for i in range(2):
        queue.start(group(f"a{i}", "x", tenant=A))
        assert ends.get(timeout=5).error is None
        wait_for(lambda i=i: len(queue.stuck) == i + 1)
    queue.start(group("b", "x", tenant=A))
    assert isinstance(ends.get(timeout=5).error, OverloadError)
    queue.start(group("c", "x", tenant=B))
    assert ends.get(timeout=5).error is None


def test_compiled_grammars_that_wait_are_bounded(fake, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_AHEAD_BYTES", 2500)
    queue, ends = start(fake, 10)
    queue.start(group("a", "x", 5))
    end = ends.get(timeout=10)
    assert isinstance(end.error, OverloadError)
    assert "fewer choices" in end.error.message
    assert len(fake.seen) == 3
    assert len(queue.claim(end)[0]) == 5
    assert queue.held_bytes == 0
    fake.ahead_bytes = 1500
    for later in (True, False):
        queue.start(group("b", "x", later=later))
        end = ends.get(timeout=10)
        assert isinstance(end.error, OverloadError) == later
        queue.claim(end)
    fake.ahead_bytes = 2500
    queue.start(group("b", "x"))
    assert isinstance(ends.get(timeout=10).error, OverloadError)


def order(turns: Turns, seconds: dict[str, float]) -> list[str]:
    """The tenants in their turns, each charged by its name."""
    told = []
    while turns:
        group = turns.take()
        told.append(group.requests[0].terms.tenant.name)
        turns.charge(group, seconds[told[-1]])
    return told


def test_tenants_take_turns_by_the_time_their_grammars_took():
    turns = Turns()
    for i in range(8):
        turns.put(group(f"a{i}", "x", tenant=A))
    for i in range(4):
        turns.put(group(f"b{i}", "x", tenant=B))
    assert order(turns, {"a": 1.0, "b": 1.0}) == list("abababab") + ["a"] * 4
    for i in range(9):
        turns.put(group(f"a{i}", "x", tenant=A))
        turns.put(group(f"h{i}", "x", tenant=HEAVY))
    assert order(turns, {"a": 1.0, "heavy": 1.0})[:9].count("heavy") == 6


def test_the_background_comes_after_all_others():
    turns = Turns()
    for i in range(3):
        turns.put(group(f"a{i}", "x", tenant=A, later=True))
    for i in range(3):
        turns.put(group(f"b{i}", "x", tenant=B))
        turns.put(group(f"a{i}", "x", tenant=A))
    assert order(turns, {"a": 1.0, "b": 1.0}) == list("bababa") + ["a"] * 3


def test_who_was_away_is_not_owed_for_it_and_nobody_sheds_a_debt_by_leaving():
    turns = Turns()
    for i in range(50):
        turns.put(group(f"a{i}", "x", tenant=A))
    order(turns, {"a": 1.0})
    for i in range(4):
        turns.put(group(f"b{i}", "x", tenant=B))
        turns.put(group(f"a{i}", "x", tenant=A))
    assert order(turns, {"a": 1.0, "b": 1.0}) == list("bbababaa")
    turns.put(group("b", "x", tenant=B))
    assert order(turns, {"b": 5.0}) == ["b"]
    turns.put(group("b", "x", tenant=B))
    for i in range(3):
        turns.put(group(f"a{i}", "x", tenant=A))
    assert order(turns, {"a": 1.0, "b": 1.0}) == list("aaab")


def test_tenants_that_are_gone_are_forgotten_but_the_greatest_debtors(monkeypatch):
    monkeypatch.setattr(turns_module, "MAX_REMEMBERED", 8)
    turns = Turns()
    turns.put(group("a", "x", tenant=A))
    assert order(turns, {"a": 1000.0}) == ["a"]
    for i in range(100):
        turns.put(group("t", "x", tenant=Tenant(name=f"t{i}")))
        order(turns, {f"t{i}": 1.0})
        assert turns.num_remembered <= 9
    turns.put(group("a", "x", tenant=A))
    turns.put(group("b", "x", tenant=B))
    assert order(turns, {"a": 1.0, "b": 1.0}) == ["b", "a"]


def test_a_beam_search_has_no_grammar():
    intake = Intake(text_of(), 320, 64, 0)
    ask = Ask(prompt=(1,), params=SamplingParams(structured=Grammar.regex("a")), task=BeamSearch(width=2))
    with pytest.raises(RequestError, match="no structured output"):
        intake.prepare(ask)
