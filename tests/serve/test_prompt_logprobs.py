"""Log-probabilities of the prompt (chapter 3, SA-5): bounds, echo, the same however they are asked for."""

from typing import Any

import httpx
import pytest

from headrace.base.request import MAX_LOGPROBS
from tests.serve.conftest import Live

PROMPT = "Water flows down the hill and into the"


def post(live: Live, path: str = "completions", **more: Any) -> httpx.Response:
    body: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    body |= (
        {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    )
    return httpx.post(f"{live.url}/v1/{path}", json=body | more, timeout=60)


def choice(live: Live, **more: Any) -> dict[str, Any]:
    answer = post(live, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def drawn(entries: list[Any]) -> list[tuple[int, float]]:
    """Token and value of each entry; the first token of a prompt has none."""
    assert entries[0] is None
    return [next((int(i), e["logprob"]) for i, e in entry.items()) for entry in entries[1:]]


def test_sa5_values_do_not_depend_on_how_many_are_asked_for(live_server: Live) -> None:
    found = {k: choice(live_server, prompt_logprobs=k)["prompt_logprobs"] for k in (0, 1, 5, MAX_LOGPROBS)}
    ids = httpx.post(live_server.url + "/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    for k, entries in found.items():
        assert len(entries) == len(ids)
        tokens = [
            next(e for i, e in entry.items() if int(i) == t)
            for entry, t in zip(entries[1:], ids[1:], strict=True)
        ]
        assert [e["logprob"] for e in tokens] == [v for _, v in drawn(found[0])]
        assert all(max(k, 1) <= len(entry) <= k + 1 for entry in entries[1:])


def test_sa5_an_echoed_prompt_has_the_same_values(live_server: Live) -> None:
    scored = drawn(choice(live_server, prompt_logprobs=0)["prompt_logprobs"])
    echoed = choice(live_server, echo=True, logprobs=0)
    values = echoed["logprobs"]["token_logprobs"]
    assert echoed["text"].startswith(PROMPT)
    assert (values[0], values[1 : len(scored) + 1]) == (None, [v for _, v in scored])
    assert len(values) == len(scored) + 1 + 3
    plain = choice(live_server, logprobs=0)
    assert plain["logprobs"]["token_logprobs"] == values[-3:]
    assert "prompt_logprobs" not in plain or plain["prompt_logprobs"] is None


@pytest.mark.parametrize("n", [1, 3])
def test_the_prompt_is_scored_once_for_all_choices(live_server: Live, n: int) -> None:
    answer = post(live_server, n=n, temperature=1, seed=4, echo=True, logprobs=1).json()
    heads = [c["logprobs"]["token_logprobs"][:8] for c in answer["choices"]]
    assert heads == heads[:1] * n
    assert heads[0] == choice(live_server, echo=True, logprobs=1)["logprobs"]["token_logprobs"][:8]


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("completions", {"prompt_logprobs": MAX_LOGPROBS + 1}, "prompt_logprobs"),
        ("completions", {"prompt_logprobs": -1}, "prompt_logprobs"),
        ("completions", {"echo": True, "logprobs": MAX_LOGPROBS + 1}, "logprobs"),
        ("completions", {"logprobs": MAX_LOGPROBS + 1}, "logprobs"),
        ("completions", {"echo": True, "logprobs": -1}, "logprobs"),
        ("chat/completions", {"prompt_logprobs": MAX_LOGPROBS + 1}, "prompt_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": MAX_LOGPROBS + 1}, "top_logprobs"),
    ],
)
def test_one_more_than_the_limit_is_refused_by_name(
    live_server: Live, path: str, more: dict[str, Any], param: str
) -> None:
    answer = post(live_server, path, **more)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert str(MAX_LOGPROBS) in error["message"]


def test_the_limit_itself_is_fine(live_server: Live) -> None:
    assert choice(live_server, echo=True, logprobs=MAX_LOGPROBS)["logprobs"]["top_logprobs"][0] is None
    chat = post(live_server, "chat/completions", prompt_logprobs=MAX_LOGPROBS, logprobs=True, top_logprobs=20)
    assert chat.status_code == 200, chat.text
