"""The commands that measure drafting: what they take for a difference, and what they time."""

import random
from dataclasses import replace

import pytest

from benchmarks.speculation.exact import Asked, differences, random_request, wishes
from benchmarks.speculation.lookups import TEXTS, measured
from headrace.base.request import SamplingParams
from headrace.base.tasks import Speculation
from headrace.compute.spec.proposer import PROPOSERS
from headrace.engine.outputs import Completion, GenerationResult, Usage

ASKED = Asked((1, 2), SamplingParams(seed=0), 0.0, None)
CHOICE = Completion(index=0, text="ab", token_ids=(5, 6, 7), finish_reason="stop", stop_reason="c")
WANT = GenerationResult(
    request_id="r", prompt=None, prompt_ids=(1, 2), choices=(CHOICE,), usage=Usage(), seed=0
)


@pytest.mark.parametrize(
    "change",
    [{"text": "a"}, {"token_ids": (5, 6)}, {"finish_reason": "length"}, {"stop_reason": None}],
    ids=str,
)
def test_an_answer_that_differs_anywhere_is_told(change):
    same = replace(WANT, request_id="other", usage=Usage(accepted_drafts=3))
    assert differences(ASKED, same, WANT) == []
    (told,) = differences(ASKED, replace(WANT, choices=(replace(CHOICE, **change),)), WANT)
    assert told.startswith("choices: ")


def test_errors_and_answers_that_were_left_are_compared_too():
    assert differences(ASKED, "RequestError: no", "RequestError: no") == []
    assert differences(ASKED, WANT, "RequestError: no")
    assert differences(ASKED, "RequestError: no", WANT)
    left = replace(ASKED, leaves_after=2)
    assert differences(left, ([5, 6], [], ""), WANT) == []
    assert differences(replace(left, leaves_after=9), ([5, 6, 7], [], ""), WANT) == []
    assert differences(left, ([5, 7], [], ""), WANT)
    assert differences(left, ([5, 6], [0.5], ""), WANT)
    assert differences(left, ([5], [], ""), WANT)  # it ended too soon
    assert differences(left, ([5, 6], [], "RequestError: no"), WANT)
    assert differences(left, ([5], [], "RequestError: no"), "RequestError: no") == []
    assert differences(left, ([5, 6], [], ""), "RequestError: no") == []  # it was left before
    assert differences(left, ([5], [], ""), "RequestError: no")
    assert differences(left, ([5], [], "RequestError: other"), "RequestError: no")


@pytest.mark.parametrize(
    ("offered", "names"),
    [
        ("suffix", {"suffix"}),
        ("auto", {"auto", "ngram", "suffix"}),
        ("auto,draft=x", {"auto", "ngram", "suffix", "draft", "auto,draft"}),
        ("ngram,eagle=x", {"ngram", "eagle", "ngram,eagle"}),
    ],
)
def test_requests_ask_for_what_the_engine_has_and_for_all_of_it(offered, names):
    engine, rng = Speculation.parse(offered), random.Random(1)
    asks = [random_request(rng, lambda text: range(len(text)), 200, wishes(engine)) for _ in range(300)]
    asked = {ask.params.speculate for ask in asks} - {None}
    assert {wish.partition(",depth")[0] for wish in asked} == names | {"off"}
    assert {int(wish[-1]) for wish in asked if "depth" in wish} == set(range(1, 9))
    for wish in asked:
        Speculation.parse(wish).within(engine)


@pytest.mark.parametrize("name", PROPOSERS.names())
@pytest.mark.parametrize("remembered", [0, 900])
def test_each_token_of_a_text_is_followed_by_an_ask(name, remembered):
    for make in TEXTS.values():
        text = make(random.Random(1), 1500)
        assert len(text) == 1500
        first_s, found = measured(PROPOSERS.get(name), text, 40, remembered)
        assert len(found) == 40
        assert min(first_s, *found) > 0
