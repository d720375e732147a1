"""The native encoder gives the library's ids: made-up vocabularies here, real ones in tests/golden."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from headrace import _native
from headrace.base.errors import CheckpointError, RequestError
from headrace.base.specs import TextArray, TokenizerSource
from headrace.host.text.tokenizer import Tokenizer, load_tokenizer
from headrace.host.text.vocab.bytepairs import BytePairEncoder
from headrace.host.text.vocab.pretokenize import RULE_BY_NAME
from headrace.host.text.vocab.spelling import CHAR_BY_BYTE
from headrace.host.text.vocab.vocabulary import LibraryEncoder, TooManyTokensError
from tests.kit.vocabs import SPECIALS, byte_metadata

LETTERS = ("a", "b", "c", "Ġ", "Ã", "©", "1")


def random_merges(draw: random.Random, count: int) -> list[str]:
    """Merges over few letters, so that words hold many that compete; some come twice."""
    parts: list[str] = [*LETTERS]
    merges: list[str] = []
    for _ in range(count):
        left, right = draw.choice(parts), draw.choice(parts)
        if len(left + right) <= 12:
            merges.append(f"{left} {right}")
            parts.append(left + right)
    return merges


def random_text(draw: random.Random) -> str:
    marks = ("<tool_call>", "<|im_end|>", "ab", "\ue000\uf8ff\ue000", "é", " ", "\n", "🙂", "11", "Ġ", "\x00")
    letters = ("a", "b", "c", " ", "é", "1")
    return "".join(
        draw.choice(marks) if draw.random() < 0.1 else draw.choice(letters) for _ in range(draw.randrange(60))
    )


def quick(data: dict) -> Tokenizer:
    """The tokenizer of metadata whose texts are one block, as those of a large file are."""
    names = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    return load_tokenizer(TokenizerSource(gguf=data | {n: TextArray.of(data[n]) for n in names if n in data}))


def plain(data: dict) -> Tokenizer:
    return load_tokenizer(TokenizerSource(gguf=data))


def encoder(tokenizer: Tokenizer) -> object:
    return tokenizer._vocabulary.core


@pytest.mark.parametrize("rule", ["gpt-2", "qwen2", "llama-bpe", "deepseek-v3", "smollm"])
@pytest.mark.parametrize("added", [(), ("<tool_call>",), ("<tool_call>", "a", "ab", "<tool_call>")])
def test_ids_equal_the_librarys(rule, added):
    draw = random.Random(f"{rule}{added}")
    for _ in range(20):
        data = byte_metadata(random_merges(draw, 60), pre=rule, added=added)
        ours, theirs = quick(data), plain(data)
        assert isinstance(encoder(ours), BytePairEncoder)
        assert isinstance(encoder(theirs), LibraryEncoder)
        for text in [random_text(draw) for _ in range(40)]:
            for parse in (True, False):
                assert ours.encode(text, parse_special=parse) == theirs.encode(text, parse_special=parse)
        entries = data["tokenizer.ggml.tokens"]
        assert [ours.token_id(e) for e in [*entries, "nope"]] == [
            theirs.token_id(e) for e in [*entries, "nope"]
        ]
        assert [ours.token_bytes(i) for i in range(len(entries))] == [
            theirs.token_bytes(i) for i in range(len(entries))
        ]


@pytest.mark.parametrize("rule", sorted(RULE_BY_NAME))
def test_every_word_rule_gives_the_librarys_ids(rule):
    data = byte_metadata(pre=rule)
    text = "I'll pay 1234567 €!\r\n\n  naïve 東京 x_1\t{a: 'b'} hello — \uff12\uff13 ...\n e\u0301"
    ours = quick(data)
    assert isinstance(encoder(ours), BytePairEncoder)  # not the library, which it falls back to
    assert ours.encode(text) == plain(data).encode(text)


def test_bytes_that_are_no_token_are_left_out_as_by_the_library():
    data = byte_metadata()
    at = data["tokenizer.ggml.tokens"].index("x")
    data["tokenizer.ggml.tokens"][at] = "<gone>"
    ours, theirs = quick(data), plain(data)
    for text in ("x", "xx", "hexllo", "xhello x", "hello"):
        assert ours.encode(text) == theirs.encode(text)
    assert ours.encode("xx", add_special=False) == []


def lacking(*gone: int) -> Tokenizer:
    """A tokenizer in whose vocabulary those bytes are no token."""
    data = byte_metadata()
    entries = data["tokenizer.ggml.tokens"]
    for byte in gone:
        entries[entries.index(CHAR_BY_BYTE[byte])] = f"<gone {byte}>"
    return quick(data)


def cutting(gone: tuple[int, ...]) -> BytePairEncoder:
    found = encoder(lacking(*gone))
    assert isinstance(found, BytePairEncoder)
    return found


@pytest.mark.parametrize(
    ("gone", "unspelled"),
    [
        ((), ""),
        ((0x1D, 0x04), "\x04\x1d"),
        ((0x7F, 0xC0, 0xC1, *range(0xF1, 0x100)), "\x7f"),  # no character is of these alone
        ((0x80,), None),
        ((0x04, 0xBF), None),
    ],
)
def test_what_is_known_of_words_whose_bytes_may_be_no_tokens(gone, unspelled):
    assert cutting(gone).unspelled == unspelled


@pytest.mark.parametrize("gone", [(), (0x04, 0x1D, 0x31, 0xF1), (0x04, 0x80, 0x81), range(0x80, 0x100)])
def test_a_text_that_fits_is_never_refused_and_one_that_does_not_always(gone):
    tokenizer, draw = lacking(*gone), random.Random(str(gone))
    parts = (
        "a",
        " ",
        "1",
        "\x04",
        "\x1d",
        "é",
        "\x80",
        "\U00050000",
        "\n",
        "hello",
        SPECIALS[1],
        "\x04 \x1d",
    )
    for _ in range(300):
        text = "".join(draw.choices(parts, k=draw.randrange(30)))
        ids = tokenizer.encode(text)
        assert tokenizer.encode(text, most=len(ids)) == ids
        for most in range(len(ids)):
            with pytest.raises(TooManyTokensError) as refused:
                tokenizer.encode(text, most=most)
            assert most < refused.value.count <= len(ids)


def test_words_that_come_to_no_token_take_no_room():
    tokenizer = lacking(0x04)
    words = "a\x04" * 500
    assert len(encoder(tokenizer).cutter.encode(words)) == 1000
    assert len(tokenizer.encode(words, most=500)) == 500
    cutter_alone = replace(cutting((0x04,)), pairs=None)
    with pytest.raises(TooManyTokensError, match="at least 500"):
        cutter_alone.encode(words, most=499)


def test_a_long_word_takes_no_square_of_its_length():
    tokenizer = quick(byte_metadata(["a a", "aa aa", "aaaa aaaa"]))
    assert len(tokenizer.encode("a" * 800_000, add_special=False)) == 100_000


@pytest.mark.parametrize("merges", [["zz yy"], ["ab"], ["ab "], ["Ā b"]])
def test_broken_merges_are_refused_as_by_the_library(merges):
    data = byte_metadata() | {"tokenizer.ggml.merges": merges}
    with pytest.raises(CheckpointError, match="merge") as ours:
        quick(data)
    with pytest.raises(CheckpointError) as theirs:
        plain(data)
    assert ours.value.message == theirs.value.message


def test_without_random_numbers_the_librarys_encoder_does(monkeypatch):
    def no_source(*_: object) -> None:
        raise RuntimeError("random_device could not be read")

    monkeypatch.setattr(_native, "BytePairs", no_source)
    tokenizer = quick(byte_metadata())
    assert isinstance(encoder(tokenizer), LibraryEncoder)
    assert tokenizer.encode("hello x") == plain(byte_metadata()).encode("hello x")


OUT_OF_MEMORY = """
import resource
import numpy as np
from headrace._native import BytePairs

MIB = 1 << 20
PAGES = lambda: int(open("/proc/self/statm").read().split()[0])
empty = np.zeros(0, np.uint8)
tokens, merges = np.zeros(MIB, np.uint64), np.zeros(16 * MIB, np.uint64)  # ends: all texts are empty
used = PAGES() * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 160 * MIB,) * 2)  # the index of the merges takes 512 MiB


def refused():
    try:
        BytePairs(empty, tokens, empty, merges, False)
    except MemoryError:
        return
    raise SystemExit("made, or refused for another reason")


refused()
before = PAGES()
for _ in range(6):
    refused()
print((PAGES() - before) * resource.getpagesize() // MIB)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_encoder_that_finds_no_memory_leaves_nothing_behind():
    """Each try copies the ends and makes an index of tokens, 16 MiB together, before it fails."""
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) < 16


def test_a_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(RequestError, match=r"U\+D800.*character 2"):
        quick(byte_metadata()).encode("ab\ud800")


def test_a_vocabulary_with_empty_entries_is_named_as_before():
    data = byte_metadata(added=("", "<tool_call>"))
    assert quick(data).encode("hello<tool_call>") == plain(data).encode("hello<tool_call>")


def test_a_text_array_reads_like_a_list():
    texts = ["a", "", "é🙂", "word" * 9]
    array = TextArray.of(texts)
    assert array == texts
    assert list(array) == texts
    assert array[1:] == texts[1:]
    assert array[-1] == texts[-1]
    assert array.has_empty
    assert not TextArray.of(["a"]).has_empty
    assert len(TextArray.of([])) == 0
    with pytest.raises(IndexError):
        array[4]
