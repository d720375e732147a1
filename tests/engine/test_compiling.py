"""Requests whose grammar is being compiled are in the queue: bounds, deadlines and shares hold for them."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest

from headrace.base.clock import now_s
from headrace.base.config import DeviceConfig, EngineConfig, KVConfig, ModelConfig, ScheduleConfig
from headrace.base.grammar import Grammar
from headrace.base.ids import RequestId
from headrace.base.messages import AddGroup, AskStats, Finish, News, Refused, Shutdown, Stats
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.step import Delta
from headrace.base.terms import ANYBODY, Tenant, Terms
from headrace.engine.build import build_core, open_model
from headrace.engine.grammars.structured import Structured
from headrace.engine.loop import EngineLoop
from tests.kit.engine import END, rig, tiny_llama, tiny_text

SLOW, QUICK = Grammar.regex("[a-f]{4}"), Grammar.regex("[0-9]{3}")


class Engine:
    """A loop in a thread; grammars that are `SLOW` are not compiled before `go` is set."""

    def __init__(self, patch: pytest.MonkeyPatch, **schedule: Any) -> None:
        self.go = Event()
        self.began: list[str] = []
        plain = Structured.compile

        def compile_them(structured: Structured, requests: Any) -> Any:
            if structured is self.core.structured:  # the thread of an engine before may not have ended
                self.began.append(requests[0].request_id)
                assert requests[0].sampling.structured is not SLOW or self.go.wait(30)
            return plain(structured, requests)

        patch.setattr(Structured, "compile", compile_them)
        config = EngineConfig(
            model=ModelConfig(model=str(tiny_llama())),
            device=DeviceConfig(threads=1),
            kv=KVConfig(num_blocks=64, dtype="f32"),
            schedule=ScheduleConfig(**schedule),
        )
        self.core = build_core(open_model(config, with_text=False), text=tiny_text)
        self._events: SimpleQueue[Any] = SimpleQueue()
        self.loop = EngineLoop(self.core, self._events.put)
        self._thread = Thread(target=self.loop.run, daemon=True)
        self._thread.start()

    def add(self, name: str, grammar: Grammar | None = SLOW, num: int = 1, **more: Any) -> list[Request]:
        made = [ask(name if i == 0 else f"{name}.{i}", grammar, name, i, **more) for i in range(num)]
        self.loop.put(AddGroup(requests=tuple(made)))
        return made

    def event(self) -> Any:
        return self._events.get(timeout=20)

    def ends(self, count: int = 1) -> dict[str, Delta]:
        """The last deltas of the next requests to end."""
        found: dict[str, Delta] = {}
        while len(found) < count:
            event = self.event()
            assert isinstance(event, News), event
            found |= {d.request_id: d for d in event.deltas if d.finish is not None}
        return found

    def stats(self) -> Stats:
        self.loop.put(AskStats(ask_id=7))
        found = self.event()
        assert isinstance(found, Stats), found
        return found

    def close(self) -> None:
        self.go.set()
        self.loop.put(Shutdown())
        self._thread.join(20)
        self.core.check()


def ask(
    name: str,
    grammar: Grammar | None,
    leader: str = "",
    i: int = 0,
    *,
    tenant: Tenant = ANYBODY,
    within_s: float | None = None,
) -> Request:
    deadline_s = None if within_s is None else now_s() + within_s
    return Request(
        request_id=RequestId(name),
        prompt_ids=(5, 6, 7, 8),
        sampling=SamplingParams(structured=grammar, seed=3 + i, max_tokens=6),
        end_ids=frozenset({END}),
        leader=RequestId(leader) if i else None,
        terms=Terms(tenant=tenant, deadline_s=deadline_s),
    )


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Engine] = []

    def engine(**schedule: Any) -> Engine:
        made.append(Engine(monkeypatch, **schedule))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def test_a_deadline_holds_while_the_grammar_is_compiled(make: Any) -> None:
    engine = make()
    engine.add("late", within_s=0.2, num=2)
    ends = engine.ends(2)
    assert {d.error_kind for d in ends.values()} == {"DeadlineError"}
    assert dict(ends["late"].timing.waits)["grammar"] == pytest.approx(0.2, abs=0.15)  # type: ignore[union-attr]
    assert engine.stats().gauges["waiting"] == 0
    engine.go.set()
    requests = engine.add("late", QUICK)  # the id is free again, and what was compiled late is for nobody
    assert engine.ends()["late"].finish is FinishReason.STOP
    assert rig().solo(requests[0]).finish is FinishReason.STOP


def test_the_longest_wait_holds_while_the_grammar_is_compiled(make: Any) -> None:
    engine = make(max_queue_s=0.2)
    engine.add("late")
    end = engine.ends()["late"]
    assert end.error_kind == "OverloadError"
    assert "its grammar was not compiled within schedule.max_queue_s = 0.2 s" in str(end.error)


def test_the_queue_is_as_long_as_it_may_be(make: Any) -> None:
    engine = make(max_num_seqs=1, max_queued_requests=2)
    for name in "abc":
        engine.add(name)
    for grammar in (SLOW, QUICK, None):
        engine.add("d", grammar)
        refused = engine.event()
        assert isinstance(refused, Refused)
        assert refused.fault.kind == "OverloadError"
        assert "schedule.max_queued_requests" in refused.fault.message
    assert engine.stats().gauges["waiting"] == 3
    engine.go.set()
    assert {d.finish for d in engine.ends(3).values()} == {FinishReason.STOP}


def test_prompt_tokens_that_wait_are_bounded(make: Any) -> None:
    engine = make(max_num_seqs=1, max_queued_tokens=8)
    for name in "abc":
        engine.add(name)
    refused = engine.event()
    assert isinstance(refused, Refused)
    assert "schedule.max_queued_tokens" in refused.fault.message


def test_the_bounds_of_a_key_hold(make: Any) -> None:
    few = Tenant(name="few", max_queued=1, max_running=1)
    engine = make()
    for name in "abc":
        engine.add(name, tenant=few)
    refused = engine.event()
    assert isinstance(refused, Refused)
    assert refused.request_ids == ("c",)
    assert "max_queued of its key" in refused.fault.message


def test_one_key_cannot_fill_the_queue_nor_the_compiler(make: Any) -> None:
    greedy, modest = Tenant(name="greedy"), Tenant(name="modest")
    engine = make(max_num_seqs=1, max_queued_requests=4)
    for name in "abcde":
        engine.add(name, tenant=greedy)
    engine.add("mine", QUICK, tenant=modest)
    left = engine.ends()
    assert list(left) == ["e"]  # who waits last of the one that has most
    assert left["e"].error_kind == "OverloadError"
    engine.go.set()
    ends = engine.ends(5)
    assert {d.finish for d in ends.values()} == {FinishReason.STOP}
    assert engine.began[:2] == ["a", "mine"]
    assert "e" not in engine.began


def test_a_refused_grammar_costs_a_key_nothing(make: Any) -> None:
    tight = Tenant(name="tight", tokens_per_minute=6)
    engine = make()
    for i in range(5):
        engine.add(f"bad{i}", Grammar.regex("("), tenant=tight)
        refused = engine.event()
        assert isinstance(refused, Refused)
        assert refused.fault.kind == "RequestError", refused.fault.message
    engine.add("good", QUICK, tenant=tight)
    assert engine.ends()["good"].finish is FinishReason.STOP


def test_who_waits_for_a_grammar_can_leave_and_others_of_the_group_go_on(make: Any) -> None:
    engine = make()
    requests = engine.add("a", num=3)
    engine.loop.put(Finish(request_ids=(RequestId("a"),), reason=FinishReason.ABORT))
    assert engine.ends()["a"].finish is FinishReason.ABORT
    engine.go.set()
    ends = engine.ends(2)
    for request in requests[1:]:
        assert ends[request.request_id].finish is rig().solo(request).finish is FinishReason.STOP


def test_the_choices_of_a_request_share_its_prompt_as_ever(make: Any) -> None:
    engine = make()
    engine.go.set()
    engine.add("a", num=3)
    engine.ends(3)
    assert engine.stats().counters["prompt_tokens"] == 4


def test_waiting_for_a_grammar_is_no_stall(make: Any) -> None:
    """OP-2: health looks at steps while there is work that steps could do."""
    engine = make()
    engine.add("a")
    assert engine.stats().gauges["waiting"] == 1
    assert not engine.loop.beat().has_work
    engine.go.set()
    engine.ends()


@pytest.mark.parametrize("name", ["headrace-grammars", "headrace-grammar"])
def test_a_machine_without_threads_refuses_a_request_and_the_engine_goes_on(
    make: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    engine, plain, left = make(), Thread.start, [name]

    def start(self: Thread) -> None:
        if self.name in left:
            raise RuntimeError("can't start new thread")
        plain(self)

    monkeypatch.setattr(Thread, "start", start)
    engine.add("a", QUICK)
    refused = engine.event()
    assert isinstance(refused, Refused), refused
    assert refused.fault.kind == "OverloadError"
    assert engine.stats().gauges["waiting"] == 0
    left.clear()
    engine.add("a", QUICK)
    assert engine.ends()["a"].finish is FinishReason.STOP


def test_matchers_count_as_waiting_until_their_requests_begin_or_end() -> None:
    core = rig().core(slots=1)
    sizes = []
    for name in "abc":
        core.add((ask(name, QUICK),))
        sizes.append(core.structured.ahead_bytes)
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    core.step()
    assert core.structured.ahead_bytes == sizes[2] - sizes[0]
    core.finish([RequestId("c")], FinishReason.ABORT)
    assert core.structured.ahead_bytes == sizes[1] - sizes[0]
    while core.has_work:
        core.step()
    assert core.structured.ahead_bytes == 0
