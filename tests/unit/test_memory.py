"""Large requests do not stay in the size of the process."""

import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from starlette.requests import Request

from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.memory import give_back
from headrace.host.text.tokenizer import LONG_CHARS
from headrace.serve.faults import on_headrace_error
from tests.kit.vocabs import byte_tokenizer


class Prompt:
    """Stands for ids and texts."""


async def test_an_answered_error_lets_go_of_the_frames_it_came_through():
    seen: list[weakref.ref[Prompt]] = []

    def fail() -> None:
        prompt = Prompt()
        seen.append(weakref.ref(prompt))
        raise ValueError("inner")

    def refuse() -> None:
        try:
            prompt = Prompt()
            seen.append(weakref.ref(prompt))
            fail()
        except ValueError as inner:
            raise ContextLengthError("too long") from inner

    kept: list[RequestError] = []
    try:
        refuse()
    except RequestError as error:
        kept.append(error)
    assert all(ref() is not None for ref in seen)
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": [], "server": ("a", 1)}
    response = await on_headrace_error(Request(scope | {"query_string": b"", "scheme": "http"}), kept[0])
    assert response.status_code == 400
    assert [ref() for ref in seen] == [None, None]


def test_long_texts_are_encoded_one_at_a_time_and_as_ever(monkeypatch):
    tokenizer = byte_tokenizer()
    plain, lock, together = tokenizer._encode_core, Lock(), []

    def encode(text: str) -> list[int]:
        assert lock.acquire(blocking=False)
        together.append(len(text))
        ids = plain(text)
        lock.release()
        return ids

    monkeypatch.setattr(tokenizer, "_encode_core", encode)
    text = "ab " * LONG_CHARS
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tokenizer.encode, [text] * 8))
    assert together == [len(text)] * 8
    assert all(tokenizer.decode(ids) == text for ids in found)


def test_memory_can_be_given_back_at_any_time():
    assert give_back() is None
