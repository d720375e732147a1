"""Sampling parameters: one form for what callers write in many, and errors that name the field."""

import numpy as np
import pytest

from headrace.base.errors import RequestError
from headrace.base.request import MAX_ID_LIST, SamplingParams


def test_what_callers_write_is_stored_in_one_form():
    given = SamplingParams(
        stop="\n\n",
        bad_words=["no", "never"],
        logit_bias={3: 1.5},
        allowed_token_ids=[np.int64(1), 2],
        bad_words_ids=[[1, 2], (3,)],
        stop_token_ids=np.array([4, 5]),
        temperature=np.float32(0.5),
        max_tokens=np.int32(7),
    )
    assert given == SamplingParams(
        stop=("\n\n",),
        bad_words=("no", "never"),
        logit_bias=((3, 1.5),),
        allowed_token_ids=(1, 2),
        bad_words_ids=((1, 2), (3,)),
        stop_token_ids=(4, 5),
        temperature=0.5,
        max_tokens=7,
    )
    assert hash(given) == hash(given)
    assert type(given.max_tokens) is int


WRONG = {
    "temperature": ["1", True, None, float("nan"), 10**400, -0.1, 100.5],
    "top_k": [1.5, "1", None, -2, True],
    "top_p": [0.0, 1.1, "x", float("nan")],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0.0, 1e-320, 10.1, float("inf")],
    "presence_penalty": [2.1],
    "frequency_penalty": [-2.1],
    "logit_bias": [5, "x", [1], [(1, 2, 3)], [(1, "x")], {-1: 0.0}, {1: 101.0}, {1.5: 1.0}],
    "allowed_token_ids": [3, "12", [], [1.5], [None]],
    "bad_words_ids": [[1], [["x"]], "ab"],
    "bad_words": [[1], 5, None],
    "stop": [[1], 5, None, [""], "x" * 257, ["x"] * 17],
    "stop_token_ids": [5, "12", [1.5], [True], [1] * (MAX_ID_LIST + 1)],
    "seed": [1.5, -1, 2**63, "7"],
    "min_tokens": [0.5, -1, 17],
    "max_tokens": [1.5, 0, -1, "3"],
    "n": [1.5, 0, 129, None],
    "logprobs": [True, 21, -1, 1.0],
    "prompt_logprobs": [True, 21],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in WRONG.items() for v in values])
def test_what_makes_no_sense_is_refused_by_name(name, value):
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
