"""Drafts over HTTP: every endpoint takes `speculate`, and its `usage` counts the drafts that were checked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace.engine.outputs import Usage
from headrace.serve.collect import total
from headrace.serve.schema.answers import draft_counts
from tests.serve.conftest import Live, serving

TEXT = "Say the line again and again: " + "one two three four five six. " * 8
SAME: dict[str, Any] = {"temperature": 0.0, "seed": 1, "repetition_penalty": 0.6}
"""What is rewarded for being there before repeats itself, so that there is something to draft."""
TURN = [{"role": "user", "content": TEXT}]
ASKS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": TEXT, "max_tokens": 24, **SAME},
    "/v1/chat/completions": {"messages": TURN, "max_tokens": 24, **SAME},
    "/v1/messages": {"messages": TURN, "max_tokens": 24, **SAME},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 24, **SAME},
}
NAMES = ("accepted_prediction_tokens", "rejected_prediction_tokens")


@pytest.fixture(scope="module")
def drafting(smollm2_path: Path) -> Iterator[Live]:
    flags = "--max-num-seqs 4 --max-model-len 512 --served-model-name any --speculate ngram,depth=3"
    with serving(smollm2_path, *flags.split()) as live:
        yield live


def counts(usage: dict[str, Any]) -> dict[str, int]:
    """The counts of drafts, wherever an API puts them."""
    places = (usage, usage.get("completion_tokens_details") or {}, usage.get("output_tokens_details") or {})
    return {name: place[name] for name in NAMES for place in places if name in place}


def said(body: dict[str, Any]) -> Any:
    """What an answer says, without names and counts."""
    if "choices" in body:
        return [choice.get("text", choice.get("message")) for choice in body["choices"]]
    return body["content"] if "content" in body else [item["content"] for item in body["output"]]


@pytest.mark.parametrize("path", ASKS)
def test_every_endpoint_drafts_and_counts_and_answers_the_same_without(drafting: Live, path: str) -> None:
    plain = httpx.post(drafting.url + path, json=ASKS[path] | {"speculate": "off"}, timeout=60).json()
    answer = httpx.post(drafting.url + path, json=ASKS[path], timeout=60).json()
    assert said(answer) == said(plain)
    assert counts(plain["usage"]) == {}
    found = counts(answer["usage"])
    assert found["accepted_prediction_tokens"] > 0
    depth_1 = httpx.post(
        drafting.url + path, json=ASKS[path] | {"speculate": "ngram,depth=1"}, timeout=60
    ).json()
    assert said(depth_1) == said(plain)
    assert 0 < counts(depth_1["usage"])["accepted_prediction_tokens"] < found["accepted_prediction_tokens"]


@pytest.mark.parametrize("path", ASKS)
def test_a_wish_that_the_server_does_not_have_is_refused(drafting: Live, path: str) -> None:
    for wish, says in (("suffix", "only ngram runs here"), ("ngram,depth=4", "at most 3 here, got 4")):
        answer = httpx.post(drafting.url + path, json=ASKS[path] | {"speculate": wish}, timeout=60)
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_and_timings_count_the_same_drafts(drafting: Live, path: str) -> None:
    ask = ASKS[path] | {"timings": True}
    whole = httpx.post(drafting.url + path, json=ask, timeout=60).json()
    found, timings = counts(whole["usage"]), whole["timings"]
    assert found["accepted_prediction_tokens"] == timings["draft_n_accepted"]
    assert sum(found.values()) == timings["draft_n"]
    told = timings["drafts"]
    assert told["rows_by_reason"]["fixed"] == told["rows"] > 0
    assert sum(told["accepted_by_place"]) == timings["draft_n_accepted"]
    assert told["tokens_per_row"] == 1 + timings["draft_n_accepted"] / told["rows"]
    stream = ask | {"stream": True, "stream_options": {"include_usage": True}}
    text = httpx.post(drafting.url + path, json=stream, timeout=60).text
    last = [json.loads(part[6:]) for part in text.split("\n\n") if part.startswith("data: {")][-1]
    assert last["choices"] == []
    assert counts(last["usage"]) == found


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"response_format": {"type": "json_object"}}, "grammar"), ({"speculate": "off"}, "off")],
    ids=["grammar", "off"],
)
def test_what_is_not_drafted_says_why(drafting: Live, more: dict[str, Any], reason: str) -> None:
    path = "/v1/chat/completions"
    answer = httpx.post(drafting.url + path, json=ASKS[path] | more | {"timings": True}, timeout=60).json()
    told = answer["timings"]["drafts"]
    assert (told["reason"], told["rows"], told["tokens_per_row"]) == (reason, 0, None)
    assert reason in told["sentence"]
    assert "draft_n" not in answer["timings"]
    text = httpx.get(drafting.url + "/metrics", timeout=60).text
    (line,) = [x for x in text.splitlines() if f'spec_decode_rows_total{{reason="{reason}"}}' in x]
    assert float(line.split()[-1]) > 0


def test_the_counts_are_where_the_official_client_has_them(drafting: Live) -> None:
    client = openai.OpenAI(base_url=drafting.url + "/v1", api_key="none", max_retries=0, timeout=60)
    answer: Any = client.chat.completions.create(
        model="any", messages=TURN, max_tokens=24, temperature=0.0, extra_body={"repetition_penalty": 0.6}
    )
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.rejected_prediction_tokens >= 0


def test_counts_of_several_prompts_are_added_up_and_no_draft_leaves_no_counts() -> None:
    usage = total([Usage(accepted_drafts=3, rejected_drafts=1), Usage(accepted_drafts=4, rejected_drafts=2)])
    assert draft_counts(usage) == dict(zip(NAMES, (7, 3), strict=True))
    assert draft_counts(Usage(rejected_drafts=2)) == dict(zip(NAMES, (0, 2), strict=True))
    assert draft_counts(Usage(completion_tokens=5)) == {}
