"""The seam of requests and engine, event by event: ids used twice, callers who leave, engines that die."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event as Flag

import pytest

from headrace.base.clock import now_s
from headrace.base.errors import EngineDeadError, RequestError
from headrace.base.faults import fault_of
from headrace.base.ids import outer_id
from headrace.base.messages import AddGroup, Failed, Finish, News, Picture, Stats, Timelines
from headrace.base.metrics.timeline import OthersPrefill
from headrace.base.request import FinishReason, SamplingParams
from headrace.base.step import Delta, SequenceTiming
from headrace.base.terms import Tenant, Terms
from headrace.engine import frontend as module
from headrace.engine.async_llm import INLINE_CHARS, AsyncLLM
from headrace.engine.build import open_model
from headrace.engine.frontend import Frontend
from headrace.engine.intake import Ask
from headrace.engine.output import Answer
from headrace.engine.process.ipc import encode
from headrace.engine.timelines import store
from tests.engine.test_process import config, until
from tests.kit.scripted import text_of
from tests.unit.test_timeline_store import line


class StillClient:
    """Takes commands and does nothing; a test gives the events."""

    def __init__(self) -> None:
        self.phases = {}
        self.sent = []
        self.fault: Exception | None = None

    def start(self, on_event) -> None:
        self.tell = on_event

    def send(self, command) -> None:
        if self.fault is not None:
            raise self.fault
        self.sent.append(command)

    def beat(self):
        return None

    def close(self) -> None:
        pass

    def finishes(self) -> list:
        return [i for c in self.sent if isinstance(c, Finish) for i in c.request_ids]


class DyingClient(StillClient):
    """Dies of the first command."""

    def send(self, command) -> None:
        super().send(command)
        self.tell(Failed(fault=fault_of(EngineDeadError("killed"))))


def opened(**more):
    return replace(open_model(config()), **more)


def submit(frontend, name="x", **params):
    outputs = []
    ask = Ask(prompt=[5, 6], params=SamplingParams(seed=1, **params), request_id=name)
    return frontend.submit(ask, outputs.append), outputs


def give(client, name="x", ids=(7,), **more) -> None:
    client.tell(News(step=1, deltas=(Delta(request_id=name, new_ids=ids, **more),)))


def test_leaving_late_spares_the_next_request_of_that_id():
    client = StillClient()
    frontend = Frontend(opened(), client)
    first, _ = submit(frontend)
    give(client, finish=FinishReason.LENGTH)
    second, _ = submit(frontend)
    frontend.cancel(first)
    assert client.finishes() == []
    frontend.cancel(second)
    assert client.finishes() == ["x"]


def test_tenants_share_no_names_of_requests():
    """Otherwise "in use" would tell one key what another calls its requests."""
    client = StillClient()
    frontend = Frontend(opened(), client)
    outputs = {name: [] for name in ("alice", "bob", "")}

    def ask(tenant: str, name: str = "x", n: int = 2) -> Ask:
        terms = Terms(tenant=Tenant(name=tenant))
        return Ask(prompt=[5, 6], params=SamplingParams(seed=1, n=n), request_id=name, terms=terms)

    made = {name: frontend.submit(ask(name), sink.append) for name, sink in outputs.items()}
    ids = [r.request_id for prepared in made.values() for r in prepared.requests]
    assert len(set(ids)) == 6
    assert {outer_id(i) for i in ids} == {"x", "x.1"}
    with pytest.raises(RequestError, match="in use: 'x'"):
        frontend.submit(ask("alice"), outputs["alice"].append)
    give(client, made["bob"].requests[0].request_id, ids=(7,))
    assert [o.request_id for o in outputs["bob"]] == ["x"]
    assert outputs["alice"] == outputs[""] == []
    assert not frontend.abort("x", "carol")
    assert frontend.abort("x", "bob")
    assert client.finishes() == [r.request_id for r in made["bob"].requests]
    for request in made["bob"].requests:
        give(client, request.request_id, ids=(), finish=FinishReason.ABORT)
    assert outputs["bob"][-1].finished
    assert frontend.num_active == 2
    frontend.submit(ask("bob"), outputs["bob"].append)
    assert not outputs["alice"]


@pytest.mark.parametrize("name", ["a\00", "a\x1fb", "\n"])
def test_names_that_the_engine_makes_itself_are_refused(name):
    frontend = Frontend(opened(), StillClient())
    with pytest.raises(RequestError, match="control character") as caught:
        submit(frontend, name)
    assert caught.value.param == "request_id"
    assert frontend.num_active == 0


def test_whoever_waits_for_statistics_learns_of_a_death_at_once():
    client = DyingClient()
    frontend = Frontend(opened(), client)
    began = now_s()
    with pytest.raises(EngineDeadError, match="before it gave statistics"):
        frontend.stats()
    assert client.sent
    assert now_s() - began < 5
    assert not frontend.questions.num_open


def test_an_engine_that_dies_as_a_stop_is_sent_does_not_take_the_listener_along():
    client = StillClient()
    frontend = Frontend(opened(text=text_of()), client)
    _, outputs = submit(frontend, stop=("a",))
    client.fault = EngineDeadError("gone")
    give(client, ids=tuple(b"a"))
    client.fault = None
    assert outputs == [] or not outputs[-1].finished
    give(client, ids=(), finish=FinishReason.STOP)
    assert outputs[-1].finished
    assert frontend.num_active == 0


def test_a_broken_answer_ends_alone(monkeypatch):
    client = StillClient()
    frontend = Frontend(opened(), client)
    (_, broken), (_, whole) = submit(frontend, "broken"), submit(frontend, "whole")
    real = Answer.take

    def take(self, deltas):
        if self.prepared.request_id == "broken":
            raise ZeroDivisionError("a fault of ours")
        return real(self, deltas)

    monkeypatch.setattr(module.Answer, "take", take)
    both = tuple(
        Delta(request_id=i, new_ids=(7,), finish=FinishReason.LENGTH if i == "whole" else None)
        for i in ("broken", "whole")
    )
    client.tell(News(step=1, deltas=both))
    assert "fault of ours" in broken[-1].error.message
    assert broken[-1].finished
    assert (whole[-1].finished, whole[-1].error) == (True, None)
    assert client.finishes() == ["broken"]
    assert frontend.num_active == 0


def test_a_timeline_that_cannot_be_kept_costs_nobody_the_answer(caplog, monkeypatch):
    real = store._packed

    def packed(timeline):
        if timeline.request_id == "odd":
            raise OverflowError("too large a number")
        return real(timeline)

    monkeypatch.setattr(store, "_packed", packed)
    client = StillClient()
    frontend = Frontend(opened(), client, keeps_timelines=True)
    outputs = {}
    terms = Terms(tenant=Tenant(name="t"))
    for i, name in enumerate(("kept", "odd", "last")):
        ask = Ask(prompt=[5, 6], params=SamplingParams(seed=1), request_id=name, terms=terms)
        outputs[name] = []
        prepared = frontend.submit(ask, outputs[name].append)
        timeline = line(prepared.leader_id, others=(OthersPrefill("x", terms.tenant.name, 0.5 + i),))
        moments = dict.fromkeys(("arrival_s", "first_scheduled_s", "first_token_s", "finished_s"), 1.0)
        timing = SequenceTiming(**moments, num_steps=1, prefill_tokens=1, timeline=timeline)
        give(client, prepared.leader_id, finish=FinishReason.LENGTH, timing=timing)
    assert [(o[-1].finished, o[-1].error) for o in outputs.values()] == [(True, None)] * 3
    assert frontend.num_active == 0
    assert [frontend.timelines.find("t", name) is not None for name in ("kept", "last")] == [True, True]
    assert frontend.timelines.find("t", "odd") is None
    (record,) = caplog.records
    assert "timeline of request 'odd' is not kept: too large a number" in record.getMessage()


@pytest.mark.parametrize("fault", [EngineDeadError("gone"), OverflowError("too large"), KeyboardInterrupt()])
def test_what_cannot_be_sent_leaves_nothing_behind(fault):
    client = StillClient()
    frontend = Frontend(opened(), client)
    client.fault = fault
    with pytest.raises(type(fault)):
        submit(frontend)
    assert frontend.num_active == 0
    client.fault = None
    submit(frontend)


def test_numbers_without_a_place_in_a_message_are_refused():
    prepared, _ = submit(Frontend(opened(), StillClient()))
    broken = prepared.requests[0]
    object.__setattr__(broken, "priority", 2**80)
    with pytest.raises(RequestError, match="AddGroup"):
        encode(AddGroup(requests=(broken,)))


async def test_kv2_a_caller_who_leaves_while_a_long_prompt_is_tokenized_leaves_no_request():
    model = opened(text=text_of())
    client = StillClient()
    llm = AsyncLLM(model, client, {})
    entered, go_on = Flag(), Flag()
    prepare = llm.frontend.intake.prepare

    def slow(ask):
        entered.set()
        go_on.wait(5)
        return prepare(ask)

    llm.frontend.intake.prepare = slow
    object.__setattr__(llm.frontend.intake, "_max_model_len", 10 * INLINE_CHARS)
    prompt = [5] * (INLINE_CHARS + 1)

    async def consume():
        async for _ in llm.generate(prompt, SamplingParams(seed=1), request_id="long"):
            pass

    task = asyncio.create_task(consume())
    await until(entered.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.sent == []
    go_on.set()
    await until(lambda: client.finishes() == ["long"], 5)
    assert isinstance(client.sent[0], AddGroup)


def reply_to(ask_id: int, kind: str):
    """What an engine says to a question."""
    if kind == "stats":
        return Stats(ask_id=ask_id, counters={"n": 1.0}, gauges={})
    if kind == "picture":
        return Picture(ask_id=ask_id, step=3, num_slots=1, rows=(), blocks=b"")
    return Timelines(ask_id=ask_id, timelines=(line("x", is_finished=False),))


def question_of(llm: AsyncLLM, kind: str):
    return llm.timeline("", "x") if kind == "timeline" else getattr(llm, kind)()


@pytest.mark.parametrize("kind", ["stats", "picture", "timeline"])
async def test_whoever_waits_for_an_engine_amid_a_step_keeps_no_thread_from_others(kind):
    client = StillClient()
    llm = AsyncLLM(opened(), client, {})
    submit(llm.frontend)
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        waiting = [asyncio.create_task(question_of(llm, kind)) for _ in range(40)]
        await until(lambda: len(client.sent) == 41)
        async with asyncio.timeout(2):
            assert await asyncio.to_thread(lambda: 5) == 5
        assert not any(task.done() for task in waiting)
        waiting.pop().cancel()
        ids = [command.ask_id for command in client.sent[1:]]
        assert len(set(ids)) == 40
        for ask_id in ids:
            await asyncio.to_thread(client.tell, reply_to(ask_id, kind))
        async with asyncio.timeout(2):
            answers = await asyncio.gather(*waiting)
    if kind == "picture":
        assert [answer.ask_id for answer in answers] == ids[:39]
    assert {type(answer) for answer in answers} == {type(answers[0])} - {type(None)}
    assert llm.frontend.questions.num_open == 0


@pytest.mark.parametrize("kind", ["stats", "picture", "timeline"])
async def test_a_question_whose_engine_dies_or_keeps_silent_says_so(kind, monkeypatch):
    """A timeline too: its request was running, so it is not unknown."""
    client = StillClient()
    llm = AsyncLLM(opened(), client, {})
    submit(llm.frontend)
    asking = asyncio.create_task(question_of(llm, kind))
    await until(lambda: len(client.sent) == 2)
    await asyncio.to_thread(client.tell, Failed(fault=fault_of(EngineDeadError("killed"))))
    with pytest.raises(EngineDeadError, match="ended before it"):
        await asyncio.wait_for(asking, 2)
    submit(llm.frontend)
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    with pytest.raises(EngineDeadError, match=r"within 0\.05 s"):
        await asyncio.wait_for(question_of(llm, kind), 2)
    client.fault = EngineDeadError("gone")
    with pytest.raises(EngineDeadError, match="gone"):
        await question_of(llm, kind)
    assert llm.frontend.questions.num_open == 0


async def test_parts_of_an_answer_tell_their_times_by_its_name_while_they_run():
    client = StillClient()
    llm = AsyncLLM(opened(), client, {})
    for name, part_of in (("cmpl-y-1", "cmpl-y"), ("chatcmpl-job-2", "")):
        params = SamplingParams(seed=1)
        ask = Ask(prompt=[5], params=params, request_id=name, part_of=part_of)
        llm.frontend.submit(ask, [].append)
    asking = asyncio.create_task(llm.timeline("", "y"))
    await until(lambda: len(client.sent) == 3)
    assert client.sent[-1].request_ids == ("cmpl-y-1",)
    moments = dict.fromkeys(("arrival_s", "first_scheduled_s", "first_token_s", "finished_s"), 1.0)
    timing = SequenceTiming(**moments, num_steps=1, prefill_tokens=1, timeline=line("cmpl-y-1"))
    give(client, "cmpl-y-1", finish=FinishReason.LENGTH, timing=timing)
    client.tell(Timelines(ask_id=client.sent[-1].ask_id, timelines=()))
    found = await asking  # it ended before the engine came to the question
    assert found is not None
    assert found.request_id == "cmpl-y-1"
    assert await llm.timeline("", "job") is None
    assert len(client.sent) == 3
