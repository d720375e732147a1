"""A thousand mixed requests over HTTP: the parts of each timeline add up to its end-to-end time."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
import pytest

from headrace.base.metrics.timeline import PartName
from tests.kit.engine import VOCAB, tiny_llama
from tests.serve.conftest import serving

NUM, CLIENTS = 1000, 8
SUM_SHARE = 0.02
"""Of the end-to-end time: how far the parts may be from it."""
SLOW_S = 0.5
"""The server books the end of sending when it gets to it: seconds on a machine with other work to do."""
SMALL_POOL = ("--max-num-seqs", "6", "--block-size", "4", "--num-kv-blocks", "32", "--max-num-batched-tokens")


@dataclass
class Asked:
    """A request as its client saw it."""

    name: str
    kind: str
    seconds: float
    is_whole: bool = True


def body_of(rng: Random, kind: str) -> dict[str, Any]:
    """A short request of some kind; prompts often begin alike."""
    start = rng.choice([[7] * 12, [9] * 9, []])
    prompt = [*start, *(rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 20)))]
    if kind == "embed":
        return {"input": prompt}
    more: dict[str, Any] = {
        "choices": {"n": rng.randint(2, 3), "temperature": 1.0},
        "beams": {"use_beam_search": True, "n": 3, "temperature": 0},
        "scored": {"prompt_logprobs": 1},
        "urgent": {"priority": -3},
        "plain": {"speculate": "off"},
        "later": {"priority": 5},
    }.get(kind, {})
    streamed = {"stream": True} if kind in {"stream", "gone"} else {}
    tokens = 60 if kind in {"gone", "later"} else rng.randint(1, 12)
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": kind != "beams"} | more | streamed


KINDS = ("drafted", "plain", "stream", "gone", "choices", "beams", "scored", "urgent", "later", "embed")


def ask(client: httpx.Client, number: int) -> Asked:
    """One request; of kind `gone` the client leaves after the first piece."""
    rng = Random(number)
    kind = rng.choice(KINDS)
    name, path = f"sum-{number}", "/v1/embeddings" if kind == "embed" else "/v1/completions"
    body = body_of(rng, kind) | {"request_id": name}
    began_s = time.monotonic()
    if kind == "gone":
        with client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            next(answer.iter_raw())
        return Asked(name, kind, time.monotonic() - began_s, is_whole=False)
    answer = client.post(path, json=body)
    assert answer.status_code == 200, (kind, answer.text)
    return Asked(name, kind, time.monotonic() - began_s)


def told(client: httpx.Client, name: str) -> dict[str, Any]:
    """The timeline of a request that is over; one whose client left ends soon after."""
    answer = None
    for _ in range(200):
        answer = client.get(f"/v1/requests/{name}/timeline")
        if answer.status_code == 200 and answer.json()["finished"]:
            return answer.json()
        time.sleep(0.05)
    pytest.fail(f"{name} has no timeline: {answer and answer.text}")


def test_the_parts_of_a_thousand_live_mixed_requests_add_up() -> None:
    """Choices, beams, drafts, streams, clients that leave, embeddings; few blocks, several clients."""
    flags = (*SMALL_POOL, "16", "--speculate", "ngram,depth=2", "--timelines", str(2 * NUM))
    with serving(tiny_llama(), *flags) as live:
        clients = [httpx.Client(base_url=live.url, timeout=60) for _ in range(CLIENTS)]

        def work(n: int) -> list[tuple[Asked, dict[str, Any]]]:
            asked = [ask(clients[n], number) for number in range(n, NUM, CLIENTS)]
            return [(one, told(clients[n], one.name)) for one in asked]

        with ThreadPoolExecutor(CLIENTS) as pool:
            found = [pair for pairs in pool.map(work, range(CLIENTS)) for pair in pairs]
        for client in clients:
            client.close()
    assert len(found) == NUM
    seen: Counter[str] = Counter()
    for asked, body in found:
        parts = body["parts"]
        assert sum(p["seconds"] for p in parts) == pytest.approx(body["e2e_s"], rel=SUM_SHARE), (asked, body)
        assert body["e2e_s"] > 0
        assert not asked.is_whole or body["e2e_s"] <= (1 + SUM_SHARE) * asked.seconds + SLOW_S, (asked, body)
        seen.update({p["name"] for p in parts} | {f"{p['name']}:{p['reason']}" for p in parts})
    assert seen.keys() >= {name.value for name in PartName} - {"tokenize"}, seen  # prompts are token ids
    assert seen.keys() >= {f"queue:{reason}" for reason in ("slots", "blocks", "token_budget", "leader")}
    # What the clients measured is mostly told: a server that forgot to book a phase would fall short.
    whole = [(asked.seconds, body["e2e_s"]) for asked, body in found if asked.is_whole]
    assert sum(e2e for _, e2e in whole) > 0.5 * sum(seconds for seconds, _ in whole)
