"""`use_beam_search` and `best_of` on both completion endpoints, against the real server."""

import httpx
import pytest

from tests.serve.conftest import Live

ASK = {"prompt": "The capital of France is", "max_tokens": 6, "use_beam_search": True, "n": 3}


def post(live: Live, path: str, body: dict) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/{path}", json=body, timeout=60)


def test_completions_and_chat_answer_with_the_best(live_server: Live) -> None:
    whole = post(live_server, "completions", ASK).json()
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert len({c["text"] for c in whole["choices"]}) == 3
    assert "Paris" in whole["choices"][0]["text"]
    fewer = post(live_server, "completions", ASK | {"n": 1, "best_of": 3}).json()
    assert [c["text"] for c in fewer["choices"]] == [whole["choices"][0]["text"]]
    assert post(live_server, "completions", ASK).json()["choices"] == whole["choices"]
    messages = [{"role": "user", "content": "Say yes."}]
    chat = post(
        live_server, "chat/completions", {"messages": messages} | {k: ASK[k] for k in ASK if k != "prompt"}
    )
    assert len(chat.json()["choices"]) == 3
    assert chat.json()["usage"]["completion_tokens"] > 3


def test_best_of_keeps_the_most_likely(live_server: Live) -> None:
    draw = {"prompt": "Once", "max_tokens": 5, "seed": 3, "temperature": 1.0, "logprobs": 0}
    drawn = post(live_server, "completions", draw | {"n": 5}).json()["choices"]
    kept = post(live_server, "completions", draw | {"n": 2, "best_of": 5}).json()
    total = {c["text"]: sum(c["logprobs"]["token_logprobs"]) for c in drawn}
    assert [c["text"] for c in kept["choices"]] == sorted(total, key=lambda t: total[t], reverse=True)[:2]
    assert [c["index"] for c in kept["choices"]] == [0, 1]
    assert kept["usage"]["completion_tokens"] == 25


BAD = [
    (ASK | {"stream": True}, "stream"),
    (ASK | {"temperature": 0.7}, "temperature"),
    (ASK | {"logprobs": 2}, "logprobs"),
    (ASK | {"stop": "x"}, "stop"),
    (ASK | {"n": 65}, "beam_width"),
    (ASK | {"n": 9}, "beam_width"),
    (ASK | {"length_penalty": 9.0}, "length_penalty"),
    (ASK | {"n": 3, "best_of": 2}, "n"),
    ({"prompt": "a", "length_penalty": 1.0}, "length_penalty"),
    ({"prompt": "a", "best_of": 2, "n": 3}, "best_of"),
    ({"prompt": "a", "best_of": 2, "stream": True}, "stream"),
    ({"prompt": "a", "best_of": 129}, "n"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_what_does_not_go_together_is_refused_by_name(live_server: Live, body, param) -> None:
    answer = post(live_server, "completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
