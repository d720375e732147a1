"""`/v1/embeddings`: the official client against the real server, and bad bodies refused by name."""

import base64
import struct
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest

from tests.serve.conftest import Live, serving


@pytest.fixture(scope="module")
def live(smollm2_path) -> Iterator[Live]:
    flags = "--max-num-seqs 4 --max-model-len 64 --max-queued-requests 64 --served-model-name smollm2"
    with serving(smollm2_path, *flags.split()) as made:
        yield made


@pytest.fixture
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=100)


def test_texts_and_ids_give_unit_vectors_in_order(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="smollm2", input=["a cat", "a kitten", "tax law"])
    assert [d.index for d in answer.data] == [0, 1, 2]
    vectors = np.array([d.embedding for d in answer.data])
    assert vectors.shape == (3, 576)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    alone = client.embeddings.create(model="smollm2", input="a cat")
    assert alone.data[0].embedding == answer.data[0].embedding
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 3


def test_float_and_base64_are_the_same_bits(live: Live, client: openai.OpenAI) -> None:
    ask = {"input": [[5, 6, 7], [9, 10]], "pooling": "mean"}
    floats = httpx.post(live.url + "/v1/embeddings", json={**ask, "encoding_format": "float"}).json()["data"]
    packed = httpx.post(live.url + "/v1/embeddings", json={**ask, "encoding_format": "base64"}).json()["data"]
    for one, other in zip(floats, packed, strict=True):
        raw = base64.b64decode(other["embedding"])
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == one["embedding"]
    plain = httpx.post(live.url + "/v1/embeddings", json={"input": ask["input"], "normalize": False})
    raw = np.array(plain.json()["data"][0]["embedding"])
    assert abs(np.linalg.norm(raw) - 1) > 1e-3  # normalize is read
    assert not np.allclose(raw / np.linalg.norm(raw), floats[0]["embedding"], atol=1e-3)  # mean is not last
    # The client asks for base64 unless told otherwise, and decodes it.
    body = {"pooling": "mean"}
    default = client.embeddings.create(model="smollm2", input=ask["input"], extra_body=body)
    named = client.embeddings.create(
        model="smollm2", input=ask["input"], encoding_format="float", extra_body=body
    )
    assert [d.embedding for d in default.data] == [d.embedding for d in named.data]
    assert default.data[0].embedding == floats[0]["embedding"]


def test_a_thousand_inputs_do_not_meet_their_own_overload(client: openai.OpenAI) -> None:
    """More inputs than may wait: the server feeds them to the engine bit by bit."""
    inputs = [[3 + i % 50, 4 + i // 50] for i in range(1000)]
    answer = client.embeddings.create(model="smollm2", input=inputs)
    assert [d.index for d in answer.data] == list(range(1000))
    assert answer.usage.prompt_tokens == 2000
    alone = client.embeddings.create(model="smollm2", input=[inputs[700]])
    assert alone.data[0].embedding == answer.data[700].embedding


BAD = [
    ({}, "input", "input must be"),
    ({"input": []}, "input", "input must be"),
    ({"input": [[]]}, "input", "each input must be"),
    ({"input": [""]}, "input", "empty"),
    ({"input": [1, -2]}, "input", "integers"),
    ({"input": [1, "a"]}, "input", "integers"),
    ({"input": [10**9]}, "input", "not in"),
    ({"input": ["a"] * 2049}, "input", "limit 2048"),
    ({"input": [5] * 65}, "input", "context limit is 64"),
    ({"input": "word " * 100}, "input", "context limit is 64"),
    ({"input": "a", "dimensions": 8}, "dimensions", "not supported"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float"),
    ({"input": "a", "pooling": "max"}, "pooling", "known: last, mean"),
    ({"input": "a", "truncate": True}, "truncate", "unknown field"),
    ({"input": "a", "priority": 2**40}, "priority", "priority"),
]


@pytest.mark.parametrize(("body", "param", "words"), BAD)
def test_bad_bodies_are_refused_by_name(live: Live, body, param, words) -> None:
    answer = httpx.post(live.url + "/v1/embeddings", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_a_prompt_may_fill_the_context(live: Live) -> None:
    answer = httpx.post(live.url + "/v1/embeddings", json={"input": [5] * 64})
    assert answer.json()["usage"] == {"prompt_tokens": 64, "total_tokens": 64}
