import time

import pytest

from headrace.host.text.detokenizer import Detokenizer
from tests.kit.vocabs import byte_tokenizer, score_tokenizer

EMOJI = list("🙂".encode())


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (2, 2), (3, 1), (1, 3), (4,)])
def test_emoji_split_over_tokens_comes_whole(cuts):
    """TK-4."""
    detokenizer, ids, sent = Detokenizer(byte_tokenizer()), list(EMOJI), []
    for count in cuts:
        sent.append(detokenizer.push(ids[:count]))
        del ids[:count]
    assert sent == [""] * (len(cuts) - 1) + ["🙂"]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_half_a_character_at_the_end_is_one_replacement(count):
    """TK-4."""
    detokenizer = Detokenizer(byte_tokenizer())
    assert detokenizer.push([97, *EMOJI[:count]]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_bytes_that_can_no_longer_become_a_character_come_at_once():
    assert Detokenizer(byte_tokenizer()).push([0xFF]) == "\ufffd"
    detokenizer = Detokenizer(byte_tokenizer())
    assert detokenizer.push(EMOJI[:2]) == ""
    assert detokenizer.push([97]) == "\ufffda"


def test_two_answers_do_not_mix():
    """TK-4: n = 2, interleaved."""
    tokenizer = byte_tokenizer()
    one, two = Detokenizer(tokenizer), Detokenizer(tokenizer)
    texts = [(one.push([i]), two.push([j])) for i, j in zip(EMOJI, "é!?.".encode(), strict=False)]
    assert "".join(t[0] for t in texts) == "🙂"
    assert "".join(t[1] for t in texts) == "é!?"


def test_special_tokens_are_hidden_or_shown():
    """TK-7."""
    tokenizer = byte_tokenizer()
    ids = [97, tokenizer.token_id("<|im_end|>"), 98]
    assert Detokenizer(tokenizer).push(ids) == "ab"
    assert Detokenizer(tokenizer, skip_special=False).push(ids) == "a<|im_end|>b"


def test_first_space_is_dropped_at_the_beginning_only():
    """TK-7."""
    tokenizer = score_tokenizer({"\u2581": -1.0, "h": -2.0, "\u2581h": -3.0})
    ids = tokenizer.encode("h h", add_special=False)
    alone = Detokenizer(tokenizer)
    assert [alone.push([i]) for i in ids] == ["h", " h"]
    after_prompt = Detokenizer(tokenizer, prompt_tail=ids)
    assert [after_prompt.push([i]) for i in ids] == [" h", " h"]


def test_character_begun_in_the_prompt_is_finished_in_the_answer():
    detokenizer = Detokenizer(byte_tokenizer(), prompt_tail=[97, *EMOJI[:2]])
    assert detokenizer.push(EMOJI[2:]) == "🙂"


@pytest.mark.slow
def test_cost_of_a_token_does_not_grow():
    """TK-6."""
    detokenizer = Detokenizer(byte_tokenizer())

    def batch() -> float:
        start = time.process_time()
        for _ in range(5_000):
            detokenizer.push([97])
        return time.process_time() - start

    early = min(batch() for _ in range(3))
    for _ in range(6):
        batch()
    assert min(batch() for _ in range(3)) < 4 * early
