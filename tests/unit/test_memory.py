"""Large requests do not stay in the size of the process."""

import subprocess
import sys
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from traceback import walk_tb

import pytest
import tokenizers
from starlette.requests import Request

from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.memory import give_back
from headrace.base.specs import TextArray, TokenizerSource
from headrace.host.text.tokenizer import LONG_CHARS, load_tokenizer
from headrace.host.text.vocab.bytepairs import BytePairEncoder
from headrace.host.text.vocab.vocabulary import LibraryEncoder, TooManyTokensError
from headrace.serve.faults import on_headrace_error
from tests.kit.vocabs import SPECIALS, byte_metadata, byte_tokenizer


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

    def encode(text: str, most: int | None) -> list[int]:
        assert lock.acquire(blocking=False)
        together.append(len(text))
        ids = plain(text, most)
        lock.release()
        return ids

    monkeypatch.setattr(tokenizer, "_encode_core", encode)
    text = "ab " * LONG_CHARS
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tokenizer.encode, [text] * 8))
    assert together == [len(text)] * 8
    assert all(tokenizer.decode(ids) == text for ids in found)


def test_special_tokens_alone_are_too_many_before_they_are_gathered():
    tokenizer = byte_tokenizer()
    text = SPECIALS[3] * 200_000
    tracemalloc.start()
    try:
        with pytest.raises(TooManyTokensError, match="at least 1001 tokens"):
            tokenizer.encode(text, most=1_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10
    assert len(tokenizer.encode(text, most=200_000)) == 200_000


@pytest.mark.parametrize("text", ["word " * 60_000, "w" * 240_000, ("word " * 600 + SPECIALS[1]) * 100])
@pytest.mark.parametrize("is_native", [False, True])
def test_too_many_tokens_are_counted_and_never_made_into_objects(is_native, text):
    data = byte_metadata()
    if is_native:
        data |= {
            f"tokenizer.ggml.{n}": TextArray.of(data[f"tokenizer.ggml.{n}"]) for n in ("tokens", "merges")
        }
    tokenizer = load_tokenizer(TokenizerSource(gguf=data))
    assert isinstance(tokenizer._vocabulary.core, BytePairEncoder if is_native else LibraryEncoder)
    tracemalloc.start()
    try:
        tokenizer.encode(text)
        made = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with pytest.raises(TooManyTokensError, match=r"at least \d{4,} tokens") as refused:
            tokenizer.encode(text, most=1_000)
        counted = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made > 3 << 20 > 1 << 20 > counted
    held = [v for frame, _ in walk_tb(refused.tb) for v in frame.f_locals.values()]
    assert any(isinstance(value, str) and value in text for value in held)
    assert not any(isinstance(value, tokenizers.Encoding) for value in held)
    for short in ("word word", f"w{SPECIALS[1]}w"):
        ids = tokenizer.encode(short)
        assert tokenizer.encode(short, most=len(ids)) == ids


SETTLED = """
import gc, sys
from headrace.base.memory import settle
lasting = [[] for _ in range(300_000)]
gc.set_threshold(50_000, 20, 20)
gc.collect()
if sys.argv[1] == "settle":
    settle()
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
recent = []
for i in range(60_000):
    recent = recent[-1_000:]
    recent.append([i])
    cycle = [recent[0]]
    cycle.append(cycle)
print(len(full))
"""


def test_what_was_loaded_delays_no_collection_once_a_process_has_settled():
    found = {
        way: int(subprocess.run([sys.executable, "-c", SETTLED, way], check=True, capture_output=True).stdout)
        for way in ("settle", "not")
    }
    assert found["settle"] > 0 == found["not"]


def test_memory_can_be_given_back_at_any_time():
    assert give_back() is None


HEAPS = """
import ctypes, sys, threading
from headrace.base.memory import keep_small
if sys.argv[2] == "small":
    assert keep_small()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
together = threading.Barrier(4)
def work():
    together.wait()
    assert all(libc.malloc(5000) for _ in range(100))
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = libc.fopen(sys.argv[1].encode(), b"w")
assert libc.malloc_info(0, file) == 0 and libc.fclose(file) == 0
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_threads_of_a_process_that_keeps_small_share_one_heap(tmp_path):
    num_heaps: dict[str, int] = {}
    for name in ("small", "plain"):
        info = tmp_path / name
        subprocess.run([sys.executable, "-c", HEAPS, str(info), name], check=True)
        num_heaps[name] = info.read_text().count("<heap nr=")
    assert num_heaps["small"] == 1
    assert num_heaps["plain"] > 1  # so the test can fail
