"""Small made-up vocabularies, as GGUF metadata."""

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headrace.base.specs import TokenizerSource
from headrace.host.text.tokenizer import Tokenizer, load_tokenizer
from headrace.host.text.vocab.spelling import CHAR_BY_BYTE

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>")


def byte_metadata(
    merges: Iterable[str] = ("h e", "l l", "he ll", "hell o"),
    *,
    added: tuple[str, ...] = ("<tool_call>",),
    **more,
) -> dict:
    """A byte-level vocabulary: 256 bytes, the merges, `added` and `SPECIALS`."""
    merges = list(merges)
    entries = [CHAR_BY_BYTE[b] for b in range(256)] + ["".join(m.split(" ")) for m in merges]
    types = [1] * len(entries) + [4] * len(added) + [3] * len(SPECIALS)
    entries += [*added, *SPECIALS]
    data = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": entries,
        "token_type": types,
        "merges": merges,
        "eos_token_id": entries.index("<|im_end|>"),
        "bos_token_id": entries.index("<s>"),
    }
    return {f"tokenizer.ggml.{k}": v for k, v in (data | more).items() if v is not None}


def byte_tokenizer(**more) -> Tokenizer:
    return load_tokenizer(TokenizerSource(gguf=byte_metadata(**more)))


def byte_library() -> tokenizers.Tokenizer:
    """The vocabulary of `byte_metadata` as the library's tokenizer, which can be saved as tokenizer.json."""
    data = {key.removeprefix("tokenizer.ggml."): value for key, value in byte_metadata().items()}
    vocab = {token: i for i, token in enumerate(data["tokens"])}
    made = tokenizers.Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in data["merges"]]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIALS))
    return made


def score_metadata(pieces: dict[str, float], **more) -> dict:
    """A SentencePiece vocabulary that merges by score: unknown, marks, 256 bytes and the pieces."""
    entries = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    data = {
        "model": "llama",
        "tokens": entries,
        "scores": [0.0] * 259 + list(pieces.values()),
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in (data | more).items() if v is not None}


def score_tokenizer(pieces: dict[str, float], **more) -> Tokenizer:
    return load_tokenizer(TokenizerSource(gguf=score_metadata(pieces, **more)))
