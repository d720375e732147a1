"""Token ids of 10,000 mixed lines equal those of transformers, loaded from the same GGUF file."""

import tracemalloc

import pytest
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.base.specs import TextArray, TokenizerSource
from headrace.compute.weights.formats.gguf import FORMAT
from headrace.host.text.tokenizer import load_tokenizer
from headrace.host.text.vocab.bytepairs import BytePairEncoder
from headrace.host.text.vocab.vocabulary import LibraryEncoder, TooManyTokensError
from tests.kit.lines import mixed_lines

LINES = mixed_lines(10_000)


def theirs(path):
    return PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)


def assert_equal(tokenizer, reference) -> None:
    wanted = reference(LINES, add_special_tokens=False)["input_ids"]
    ids = [tokenizer.encode(line, add_special=False) for line in LINES]
    wrong = [(line, got, want) for line, got, want in zip(LINES, ids, wanted, strict=True) if got != want]
    assert not wrong, (len(wrong), wrong[0])
    for skip in (False, True):
        texts = reference.batch_decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert texts == [tokenizer.decode(i, skip_special=skip) for i in ids]


def test_smollm2_ids_equal_transformers(smollm2_path):
    reference = theirs(smollm2_path)
    # transformers lacks this file's word rule (`smollm`) and leaves GPT-2's; the model's own cuts digits
    # off first.
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert_equal(load_tokenizer(FORMAT.open(smollm2_path).tokenizer_source), reference)


def test_the_native_encoder_gives_the_librarys_ids(smollm2_path, qwen_small_path):
    for path in (smollm2_path, qwen_small_path):
        source = FORMAT.open(path).tokenizer_source.gguf
        assert source
        plain = {key: list(v) if isinstance(v, TextArray) else v for key, v in source.items()}
        ours = load_tokenizer(TokenizerSource(gguf=source))
        theirs = load_tokenizer(TokenizerSource(gguf=plain))
        encoders = [tokenizer._vocabulary.core for tokenizer in (ours, theirs)]
        assert [type(e) for e in encoders] == [BytePairEncoder, LibraryEncoder]
        marks = [t.text for t in ours.specials] + [
            ours.token_text(i) for i in sorted(ours._vocabulary.literals)
        ]
        for line in [*LINES, *marks, "".join(marks), "x".join(marks), "\n".join(LINES)]:
            for parse in (True, False):
                assert ours.encode(line, parse_special=parse) == theirs.encode(line, parse_special=parse)


def test_texts_that_cannot_fit_never_become_objects(smollm2_path, qwen_small_path):
    """Vocabularies of real models lack some bytes."""
    body = "\n".join(LINES)[:300_000]
    for path in (smollm2_path, qwen_small_path):
        tokenizer = load_tokenizer(FORMAT.open(path).tokenizer_source)
        assert isinstance(tokenizer._vocabulary.core, BytePairEncoder)
        for text in (body, body.replace(" ", " \x04"), "word " * 60_000):
            num_tokens = len(tokenizer.encode(text))
            tracemalloc.start()
            try:
                with pytest.raises(TooManyTokensError) as refused:
                    tokenizer.encode(text, most=8_000)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert 8_000 < refused.value.count <= num_tokens
            assert peak < 1 << 20


@pytest.mark.slow
def test_qwen_ids_equal_transformers_and_both_sizes_share_one_vocabulary(qwen_small_path, qwen_large_path):
    source = FORMAT.open(qwen_small_path).tokenizer_source
    small, large = source.gguf, FORMAT.open(qwen_large_path).tokenizer_source.gguf
    assert small
    assert large
    for name in (
        "model",
        "pre",
        "tokens",
        "merges",
        "token_type",
        "eos_token_id",
        "bos_token_id",
        "add_bos_token",
    ):
        assert small[f"tokenizer.ggml.{name}"] == large[f"tokenizer.ggml.{name}"], name
    assert_equal(load_tokenizer(source), theirs(qwen_small_path))
    assert_equal(load_tokenizer(FORMAT.open(qwen_large_path).tokenizer_source), theirs(qwen_large_path))
