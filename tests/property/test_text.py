"""Random texts, id lists and cuts: streaming equals the whole, merging by score equals its definition."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.host.text.chat import CHATML, ChatTemplate
from headrace.host.text.detokenizer import Detokenizer
from headrace.host.text.stop import StopScanner
from tests.kit.vocabs import SPECIALS, byte_tokenizer, score_tokenizer

BYTES = byte_tokenizer()
SPACED = score_tokenizer({"\u2581": -1.0, "a": -2.0, "\u2581a": -3.0, "é": -4.0})
CHAT = ChatTemplate(CHATML, {})
LETTERS = "ab"
IDS = st.lists(st.integers(0, BYTES.vocab_size - 1) | st.sampled_from(list("🙂é東".encode())), max_size=40)
CUTS = st.lists(st.integers(1, 4), min_size=40, max_size=40)


def cut(items, sizes):
    start = 0
    for size in sizes:
        yield items[start : start + size]
        start += size


@given(IDS, CUTS, st.booleans())
def test_streamed_text_joins_to_the_whole(ids, sizes, skip):
    """TK-7: random id lists equal the decoding of the whole list."""
    for tokenizer in (BYTES, SPACED):
        known = [i % tokenizer.vocab_size for i in ids]
        detokenizer = Detokenizer(tokenizer, skip_special=skip)
        parts = [detokenizer.push(piece) for piece in cut(known, sizes)]
        assert "".join(parts) + detokenizer.flush() == tokenizer.decode(known, skip_special=skip)


@given(st.text(), CUTS, st.text(max_size=6))
def test_cut_at_every_byte_a_text_streams_whole_characters(text, sizes, prompt):
    """TK-4."""
    detokenizer = Detokenizer(BYTES, prompt_tail=list(prompt.encode()))
    parts = [detokenizer.push([byte]) for byte in text.encode()]
    assert "\ufffd" in text or all("\ufffd" not in part for part in parts)
    assert "".join(parts) + detokenizer.flush() == text


@given(st.text())
def test_byte_level_text_comes_back(text):
    assert BYTES.decode(BYTES.encode(text), skip_special=False) == text


def first_stop(text, stops):
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return end - len(max(found, key=len)), max(found, key=len)
    return len(text), None


@given(
    st.text(LETTERS, max_size=30),
    st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4),
    CUTS,
    st.booleans(),
)
def test_stops_are_found_as_by_searching_the_whole(text, stops, sizes, include):
    """TK-3."""
    scanner, sent, stop = StopScanner(stops, include=include), "", None
    for piece in cut(text, sizes):
        new, stop = scanner.push(piece)
        sent += new
        start, wanted = first_stop(text, stops)
        assert wanted is None or len(sent) <= start + len(wanted) * include
        if stop is not None:
            break
        held = len(text[: len(sent)]) - len(sent)
        assert held == 0
    sent += scanner.flush()
    start, wanted = first_stop(text, stops)
    assert (sent, stop) == (text[: start + len(wanted or "") * include], wanted)


@given(
    st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<", "|>", " ", "\n", "x", "\ufdd0"]), max_size=8)
)
def test_callers_words_make_no_special_tokens(words):
    messages = [{"role": "user", "content": "".join(words)}]
    ids = CHAT.encode(BYTES, messages)
    assert sum(map(BYTES.is_special, ids)) == 3
    assert BYTES.decode(ids, skip_special=False) == CHAT.render(messages)


@st.composite
def scored(draw):
    """Pieces over two letters that can all be built from smaller ones, with distinct scores."""
    pieces = draw(st.lists(st.text(LETTERS, min_size=2, max_size=5), unique=True, max_size=12))
    order = draw(st.permutations([*LETTERS, *pieces]))
    return {piece: -float(rank) for rank, piece in enumerate(order)}


def merged_by_score(text, scores):
    """The definition: of all neighbours whose union is a piece, join the best, the left one of equals."""
    symbols = list(text)
    while True:
        found = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not found:
            return symbols
        _, i = min(found)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(scored(), st.text(LETTERS, max_size=14))
def test_merging_by_score_equals_its_definition(scores, text):
    tokenizer = score_tokenizer(scores, add_space_prefix=False)
    ids = tokenizer.encode(text, add_special=False)
    assert [tokenizer.token_text(i) for i in ids] == merged_by_score(text, scores)
