"""Delays planted in a real engine: each lands in its part of a request's timeline, and nowhere else.

The clock is the real one moved on by the delay, so the engine does its own work in between and a delay may be
long against whatever else the machine does.
"""

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from headrace.base import clock
from headrace.base.config import EngineConfig, KVConfig, ModelConfig
from headrace.base.grammar import Grammar
from headrace.base.ids import RequestId
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import BeamSearch
from headrace.base.terms import Tenant, Terms
from headrace.compute.spec.drafting import Drafting
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.build import build_core, open_model
from headrace.engine.client import LocalClient
from headrace.engine.timelines.store import TimelineStore
from headrace.host.text.tokenizer import Tokenizer
from tests.kit.drafts import draft_with
from tests.kit.engine import rig
from tests.kit.scripted import scripted_checkpoint, text_of
from tests.serve.fake import LiveServer

DELAY_S = 100.0
SMALL = 0.02
"""Of the delay: what any other part may have."""


class Jumps:
    """The machine's clock, moved on when a test says so. It stands in for the module `time`."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._real = clock.time
        self.time, self.process_time = self._real.time, self._real.process_time

    def monotonic(self) -> float:
        return self._real.monotonic() + self.ahead_s

    def once(self, *_) -> None:
        """The delay."""
        self.ahead_s += DELAY_S


@pytest.fixture
def jumps(monkeypatch: pytest.MonkeyPatch) -> Jumps:
    made = Jumps()
    monkeypatch.setattr(clock, "time", made)
    return made


class Engine:
    """A real engine that is stepped by hand; what it does can be delayed.

    Options: fields of `tests.kit.engine.Shape`.
    """

    def __init__(self, jumps: Jumps, **options) -> None:
        shape = {"block_size": 4, "num_blocks": 64, "slots": 4, "budget": 64, "prefix_cache": True}
        self.core = rig("native", 1).core(**{**shape, "policy": "continuous", **options})
        self.jumps = jumps
        self.found: dict[str, Timeline] = {}

    def add(self, name: str, prompt, max_tokens: int = 4, **more) -> Request:
        hold = more.pop("hold", False)
        sampling = SamplingParams(
            max_tokens=max_tokens, temperature=0.0, seed=0, speculate=more.pop("speculate", None)
        )
        more.setdefault("arrival_s", clock.now_s())
        request = Request(request_id=RequestId(name), prompt_ids=tuple(prompt), sampling=sampling, **more)
        (self.core.hold if hold else self.core.add)((request,))
        return request

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            news = self.core.step()
            for delta in news.deltas if news is not None else ():
                told = delta.timing and delta.timing.timeline
                if told is not None:
                    self.found[delta.request_id] = told

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    @contextmanager
    def before(self, owner, name: str, *, when: Callable[[], bool] = lambda: True):
        """One delay before the next call of a function for which `when` holds; it has to come to that."""
        real, begun = getattr(owner, name), self.jumps.ahead_s

        def delayed(*args, **more):
            if self.jumps.ahead_s == begun and when():
                self.jumps.once()
            return real(*args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, delayed)
            yield
        assert self.jumps.ahead_s == begun + DELAY_S, "the delay was not planted"

    def computing(self, *, when: Callable[[], bool] = lambda: True):
        """A delay in the kernels of a step."""
        return self.before(self.core.runner._parts.program.__class__, "run", when=when)


def only(found: Timeline, *names: str) -> None:
    """The delay is in this part (half of it in each of two), nowhere else, and the sum is whole."""
    parts = {f"{p.name}:{p.reason}" if p.reason else str(p.name): p.seconds for p in found.parts}
    for name in names:
        assert parts.pop(name, 0.0) == pytest.approx(DELAY_S / len(names), rel=SMALL), (name, found.parts)
    assert max(parts.values(), default=0.0) < SMALL * DELAY_S, parts
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.e2e_s, rel=1e-6)


def test_before_the_engine_takes_it_is_queue_step(jumps: Jumps) -> None:
    e = Engine(jumps)
    began_s = clock.now_s()
    jumps.once()
    e.add("r", [5, 6, 7], arrival_s=began_s)
    e.run()
    only(e.found["r"], "queue:step")


def test_waiting_for_a_grammar_is_queue_grammar(jumps: Jumps) -> None:
    e = Engine(jumps)
    plain = replace(
        SamplingParams(max_tokens=3, temperature=0.0, seed=0), structured=Grammar.regex("[ab]{2}")
    )
    request = Request(request_id=RequestId("r"), prompt_ids=(5, 6), sampling=plain, arrival_s=clock.now_s())
    e.core.hold((request,))
    with e.before(e.core.structured, "compile"):
        matchers = e.core.structured.compile((request,))
    e.core.let_go((request,), matchers)
    e.run()
    only(e.found["r"], "queue:grammar")


@pytest.mark.parametrize(
    ("reason", "options", "more"),
    [
        ("slots", {"slots": 1}, {}),
        ("blocks", {"num_blocks": 5}, {}),
        ("tenant_limit", {}, {"terms": Terms(tenant=Tenant(name="t", max_running=1))}),
    ],
)
def test_what_another_holds_is_queue_by_its_name(jumps: Jumps, reason: str, options, more) -> None:
    e = Engine(jumps, **options)
    e.add("other", range(3, 12), max_tokens=8, **more)
    e.step()
    e.add("r", range(30, 39), max_tokens=3, **more)
    e.step()
    with e.computing():
        e.step()
    e.run()
    only(e.found["r"], f"queue:{reason}")
    only(e.found["other"], "decode")


def test_no_room_in_a_step_is_queue_token_budget(jumps: Jumps) -> None:
    e = Engine(jumps, budget=4)
    e.add("other", range(3, 15), max_tokens=1)
    e.add("r", range(30, 34), max_tokens=1)
    with e.computing():
        e.run()
    only(e.found["r"], "queue:token_budget")
    only(e.found["other"], "prefill")


def test_being_overtaken_by_a_better_priority_is_queue_priority(jumps: Jumps) -> None:
    e = Engine(jumps, slots=1)
    e.add("other", [5, 6, 7], max_tokens=2)
    e.step()
    e.add("r", [8, 9], max_tokens=2)
    e.step()
    e.add("urgent", [10, 11], max_tokens=3, priority=-5)
    e.step()
    with e.computing():
        e.step()
    e.run()
    only(e.found["r"], "queue:priority")
    only(e.found["urgent"], "decode")


def test_a_prompt_that_is_shared_is_queue_leader(jumps: Jumps) -> None:
    e = Engine(jumps, budget=4)
    prompt = range(3, 15)
    first = Request(
        request_id=RequestId("a"),
        prompt_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=2, temperature=0.0, seed=0),
        arrival_s=clock.now_s(),
    )
    e.core.add((first, replace(first, request_id=RequestId("a.1"), leader=first.request_id)))
    with e.computing():
        e.run()
    only(e.found["a.1"], "queue:leader")
    only(e.found["a"], "prefill")


def test_waiting_for_the_policy_to_let_it_in_is_queue_policy_window(jumps: Jumps) -> None:
    e = Engine(jumps, policy="dynamic", window_ms=1000 * DELAY_S / 2)
    e.add("r", [5, 6, 7])
    assert e.core.step() is None
    jumps.once()
    e.run()
    only(e.found["r"], "queue:policy_window")


def test_a_background_that_spent_its_minute_is_queue_tokens_per_minute(jumps: Jumps) -> None:
    """Of 60 tokens a minute half are kept for others: 40 of the first leave none for the second."""
    e = Engine(jumps)
    terms = Terms(tenant=Tenant(name="t", tokens_per_minute=60), is_background=True)
    e.add("other", range(3, 43), max_tokens=2, terms=terms)
    e.run()
    e.add("r", range(50, 53), terms=terms)
    assert e.core.step() is None
    jumps.once()
    e.run()
    only(e.found["r"], "queue:tokens_per_minute")
    assert e.found["other"].e2e_s < SMALL * DELAY_S


def test_a_beam_that_waits_for_the_others_of_its_search_is_queue_beams(jumps: Jumps) -> None:
    """Three beams in steps of two rows: the leader has its result while another's is computed."""
    e = Engine(jumps, budget=2)
    e.add("r", [5, 6], max_tokens=4, task=BeamSearch(width=3))
    scheduler = e.core.scheduler

    def is_leader_waiting() -> bool:
        return scheduler._sequences[RequestId("r")].offer is not None

    with e.computing(when=is_leader_waiting):
        e.run()
    only(e.found["r"], "queue:beams")


def test_looking_for_the_prefix_is_prefix_lookup(jumps: Jumps) -> None:
    e = Engine(jumps)
    e.add("r", range(3, 15))
    with e.before(e.core.scheduler._ledger, "open"):
        e.run()
    only(e.found["r"], "prefix_lookup:no_common_prefix")


def test_computing_its_prompt_is_prefill_and_for_who_decodes_beside_it_others_prefill(jumps: Jumps) -> None:
    e = Engine(jumps)
    e.add("other", [5, 6, 7], max_tokens=20)
    e.step(8)  # what a step that only decodes takes is known then
    e.add("r", range(30, 60), max_tokens=2)
    with e.computing():
        e.step()
    e.run()
    only(e.found["r"], "prefill")
    only(e.found["other"], "others_prefill:r")


def test_drawing_its_tokens_is_decode(jumps: Jumps) -> None:
    e = Engine(jumps)
    e.add("r", [5, 6, 7], max_tokens=6)
    e.step(2)
    with e.computing():
        e.step()
    e.run()
    only(e.found["r"], "decode")


def test_drafts_made_and_checked_are_draft_and_verify(jumps: Jumps) -> None:
    e = Engine(jumps, speculate="ngram,depth=2")
    draft_with(e.core, lambda _ids: [5, 5])
    plans = []
    real = e.core.run
    e.core.run = lambda plan: (plans.append(plan), real(plan))[1]
    e.add("r", [5, 6, 7], max_tokens=12)
    e.step(2)
    with e.computing(when=lambda: any(row.num_drafts for row in plans[-1].rows)):
        e.run()
    only(e.found["r"], "verify")
    e.add("again", [5, 6, 7], max_tokens=12)
    e.add("plain", [8, 6, 7], max_tokens=12, speculate="off")
    e.step(2)
    with e.before(Drafting, "_propose"):
        e.step()
    e.run()
    only(e.found["again"], "draft")
    only(e.found["plain"], "draft:others")


def test_losing_its_blocks_is_preempted_while_it_waits_and_while_it_computes_again(jumps: Jumps) -> None:
    for place, reason in ((0, "waiting"), (1, "recomputing")):
        e = Engine(jumps, num_blocks=8, block_size=1, prefix_cache=False, slots=2)
        e.add("old", [5, 6], max_tokens=6)
        e.step()
        e.add("new", [8, 9], max_tokens=5)
        counts = []
        while not (counts and counts[-1]):
            e.step()
            counts.append(e.core.stats().counters["preemptions"])
        if place == 0:
            with e.computing():
                e.step()
        else:
            while "old" not in e.found:
                e.step()
            with e.computing():
                e.step()
        e.run()
        only(e.found["new"], f"preempted:{reason}")


@pytest.mark.parametrize("name", ["plan", "commit"])
def test_planning_and_bookkeeping_are_host(jumps: Jumps, name: str) -> None:
    e = Engine(jumps)
    e.add("r", [5, 6, 7], max_tokens=6)
    e.step(2)
    with e.before(e.core.scheduler, name):
        e.step()
    e.run()
    only(e.found["r"], "host")


# ---- what the client process adds, over HTTP ----


@pytest.fixture
def server():
    config = EngineConfig(model=ModelConfig(model=str(scripted_checkpoint({}))), kv=KVConfig(num_blocks=64))
    opened = replace(open_model(config, with_text=False), text=text_of())
    llm = AsyncLLM(opened, LocalClient(build_core(opened), {}), {})
    with LiveServer(llm) as live:  # type: ignore[arg-type]
        yield live
    llm.frontend.close()


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (Tokenizer, "encode", "tokenize"),
        ("headrace.engine.frontend", "_take", "stream_out"),
        (TimelineStore, "sent", "stream_out"),
    ],
)
def test_text_before_and_sending_after_the_engine(
    server: LiveServer, jumps: Jumps, monkeypatch: pytest.MonkeyPatch, owner, name: str, part: str
) -> None:
    """`_take` makes an answer's text in the engine's thread here: only the last one is the answer's own."""
    if isinstance(owner, str):
        import headrace.engine.frontend as owner
    real, done = getattr(owner, name), []

    def delayed(*args, **more):
        is_last = name != "_take" or args[1][-1].finish is not None
        if not jumps.ahead_s and is_last:
            jumps.once()
        if name == "sent":
            args = (*args[:3], clock.now_s())
        made = real(*args, **more)
        if is_last:
            done.append(name)
        return made

    monkeypatch.setattr(owner, name, delayed)
    ask = {"prompt": "the cat", "max_tokens": 5, "request_id": "r", "ignore_eos": True}
    answer = httpx.post(server.url + "/v1/completions", json=ask, timeout=30)
    assert answer.status_code == 200, answer.text
    until_s = time.monotonic() + 10  # the server books the end of sending after the client has the answer
    while time.monotonic() < until_s and not (name in done and jumps.ahead_s):
        time.sleep(0.002)
    assert jumps.ahead_s == DELAY_S
    found = server.llm.timelines.find("", "r")
    assert found is not None
    only(found, part)
