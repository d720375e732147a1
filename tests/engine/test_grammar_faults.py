"""The grammar library fails in the middle of an answer: that answer ends with an error, others as alone."""

from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from headrace.base.grammar import Grammar
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.engine.core import EngineCore
from headrace.engine.grammars.structured import Structured
from headrace.host.grammar import masks
from tests.kit.engine import END, GRAMMARS, Drive, rig


class Panic(BaseException):
    """What a panic of the library becomes: no `Exception`."""


class Broken:
    """A matcher of the library that raises at its `after`-th call of a method."""

    def __init__(self, inner: Any, method: str, after: int, error: type[BaseException]) -> None:
        self._inner, self._method, self._left, self._error = inner, method, after, error

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)

        def call(*args: Any) -> Any:
            if name == self._method:
                self._left -= 1
                if self._left < 0:
                    raise self._error("the library gave up")
            return real(*args)

        return call


def ask(name: str, grammar: Grammar | None, seed: int = 1) -> Request:
    sampling = SamplingParams(structured=grammar, seed=seed, max_tokens=12, logprobs=2)
    return Request(
        request_id=name,  # type: ignore[arg-type]
        prompt_ids=(5, 6, 7 + seed),
        sampling=sampling,
        end_ids=frozenset({END}),
    )


def engine(patch: pytest.MonkeyPatch, method: str, after: int, error: type[BaseException]) -> EngineCore:
    """An engine in which the matcher of the request "bad" breaks."""
    plain = Structured.compile

    def compile_them(self: Structured, requests: Any) -> Any:
        made = plain(self, requests)
        if requests[0].request_id == "bad":
            for matcher in made:
                matcher.inner = Broken(matcher.inner, method, after, error)
        return made

    patch.setattr(Structured, "compile", compile_them)
    return rig().core()


@pytest.mark.parametrize("beside", [0, 1, 3])
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, Panic])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("method", ["unsafe_compute_mask_ptr", "consume_token"])
def test_a_failing_library_ends_its_own_request_only(monkeypatch, method, after, error, beside):
    bad = ask("bad", Grammar.regex("[a-f]{12}"))
    others = [ask(f"o{i}", grammar, i) for i, grammar in enumerate([GRAMMARS[1], None, GRAMMARS[0]][:beside])]
    want = {str(r.request_id): rig().solo(r).answer for r in (bad, *others)}
    core = engine(monkeypatch, method, after, error)
    lives = Drive(core).run([bad, *others])
    for request in others:
        assert lives[request.request_id].answer == want[request.request_id]
    life = lives["bad"]
    assert life.finish is FinishReason.ERROR
    assert life.error == f"the grammar cannot go on: {error.__name__}: the library gave up"
    assert len(life.tokens) == after + (method == "consume_token")
    assert life.tokens == want["bad"][0][: len(life.tokens)]
    assert core.stats().counters["numeric_errors"] == 0
    again = replace(bad, request_id="good")  # type: ignore[arg-type]
    assert Drive(core).run([again])["good"].answer == want["bad"]


def test_a_fault_of_the_library_is_no_fault_of_the_caller(monkeypatch):
    core = engine(monkeypatch, "unsafe_compute_mask_ptr", 1, RuntimeError)
    core.add((ask("bad", GRAMMARS[0]),))
    told = []
    while core.has_work:
        news = core.step()
        assert news is not None
        told.extend(news.deltas)
    assert told[-1].error_kind == "HeadraceError"


def test_a_machine_without_threads_makes_the_same_masks(monkeypatch):
    requests = [ask(f"r{i}", grammar, i) for i, grammar in enumerate(GRAMMARS[:4])]
    want = {r.request_id: rig().solo(r).answer for r in requests}

    def no_crew(**_: Any) -> None:
        raise Panic("no thread left")

    monkeypatch.setattr(masks.library(), "LLExecutor", no_crew)
    core = rig().core()
    start = Thread.start

    def refuse(self: Thread) -> None:
        if "headrace-masks" in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(Thread, "start", refuse)
    lives = Drive(core).run(requests)
    assert {name: life.answer for name, life in lives.items()} == want
