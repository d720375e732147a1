"""Grammars compiled beside the loop: time limits, aborts, panics, the wire."""

from queue import SimpleQueue
from threading import Event
from typing import Any, cast

import pytest

from headrace.base.errors import OverloadError, RequestError
from headrace.base.grammar import Grammar
from headrace.base.messages import AddGroup
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import BeamSearch
from headrace.engine.grammars import compiling
from headrace.engine.grammars.compiling import Compiled, CompileQueue
from headrace.engine.intake import Ask, Intake
from tests.kit.scripted import text_of


class Fake:
    """Compiles what it is told: `slow` waits, `panic` fails like the library, the rest is done at once."""

    def __init__(self) -> None:
        self.go = Event()
        self.seen: list[str] = []

    def prepare(self) -> None: ...

    def restock(self, requests: Any) -> None: ...

    def compile(self, requests: Any) -> tuple[str, ...]:
        source = requests[0].sampling.structured.source
        self.seen.append(source)
        if source == "slow":
            self.go.wait(20)
        if source == "panic":
            raise BaseException("the library gave up")
        return tuple(r.request_id for r in requests)


def group(name: str, source: str, count: int = 1) -> AddGroup:
    sampling = SamplingParams(structured=Grammar.regex(source), seed=1)
    ids = [f"{name}{i}" for i in range(count)]
    return AddGroup(
        requests=tuple(Request(request_id=cast("Any", i), prompt_ids=(1,), sampling=sampling) for i in ids)
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
    assert queue.finish(["a1", "b0", "unknown"]) == ("a1", "b0")
    fake.go.set()
    requests, matchers = queue.claim(ends.get(timeout=10))
    assert [r.request_id for r in requests] == list(matchers) == ["a0", "a2"]
    queue.start(group("c", "x"))
    assert queue.claim(ends.get(timeout=10))[1] == ("c0",)
    assert "never" not in fake.seen


def test_the_line_is_bounded_and_ids_are_unique(fake):
    queue, _ = start(fake, 10)
    queue.start(group("a", "slow", 3))
    with pytest.raises(RequestError, match="in use"):
        queue.start(group("a", "x"))
    queue.start(group("b", "x", compiling.MAX_WAITING))
    with pytest.raises(OverloadError, match="wait for their grammar"):
        queue.start(group("c", "x"))


def test_a_beam_search_has_no_grammar():
    intake = Intake(text_of(), 320, 64, 0)
    ask = Ask(prompt=(1,), params=SamplingParams(structured=Grammar.regex("a")), task=BeamSearch(width=2))
    with pytest.raises(RequestError, match="no structured output"):
        intake.prepare(ask)
