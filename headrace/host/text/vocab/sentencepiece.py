"""Encoders for SentencePiece vocabularies: merging by score (`llama`) and unigram (`t5`)."""

from collections.abc import Sequence
from itertools import chain

import tokenizers
from tokenizers import models, normalizers

from headrace.base.errors import CheckpointError
from headrace.host.text.vocab.library_faults import refused
from headrace.host.text.vocab.spelling import SPACE_MARK

MAX_ENTRY_CHARS = 512
_SPACE_RUN = " {2,}"


def merge_core(
    ids: dict[str, int], mergeable: Sequence[bool], scores: Sequence[float], unknown: str
) -> tokenizers.Tokenizer:
    """An encoder that merges the neighbours whose union has the best score (SentencePiece BPE).

    Args:
        ids: entries and their ids.
        mergeable: per id, whether text may become that token (not control, unused or byte tokens).
        scores: per id; of two possible merges the higher score goes first, then the left one.
        unknown: entry for text that has no tokens, not even bytes.
    """
    model = models.BPE(
        ids,
        merges_by_score(ids, mergeable, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback="<0x00>" in ids,
    )
    core = tokenizers.Tokenizer(model)
    core.normalizer = normalizers.Replace(" ", SPACE_MARK)  # type: ignore[assignment]
    return core


def merges_by_score(
    ids: dict[str, int], mergeable: Sequence[bool], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to build an entry from two others, in the order in which merging by score tries them."""
    parts = {entry for entry, i in ids.items() if mergeable[i]}
    ranked = sorted(
        (i for entry, i in ids.items() if len(entry) > 1 and mergeable[i]), key=lambda i: (-scores[i], i)
    )
    entry_by_id = {i: entry for entry, i in ids.items()}
    return list(chain.from_iterable(_splits(entry_by_id[i], parts, ids) for i in ranked))


def _splits(entry: str, parts: set[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    if len(entry) > MAX_ENTRY_CHARS:
        raise CheckpointError(
            f"entry {ids[entry]} of the vocabulary has {len(entry)} characters; limit {MAX_ENTRY_CHARS}"
        )
    found = [
        (left, right)
        for cut in range(1, len(entry))
        if (left := entry[:cut]) in parts and (right := entry[cut:]) in parts
    ]
    return sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]])) if len(found) > 1 else found


def unigram_core(
    pieces: list[tuple[str, float]], unknown: int, charsmap: bytes, *, squeeze: bool
) -> tokenizers.Tokenizer:
    """An encoder that takes the most likely segmentation (Kudo 2018).

    Args:
        pieces: entries with log-probabilities, by id.
        unknown: id for text outside the vocabulary.
        charsmap: SentencePiece's compiled normalization rules, may be empty.
        squeeze: turn runs of spaces into one.

    Raises:
        CheckpointError: the normalization rules are broken.
    """
    byte_fallback = any(entry == "<0x00>" for entry, _ in pieces)
    core = tokenizers.Tokenizer(models.Unigram(pieces, unknown, byte_fallback))
    steps: list[normalizers.Normalizer] = [_precompiled(charsmap)] if charsmap else []
    if squeeze:
        steps.append(normalizers.Replace(tokenizers.Regex(_SPACE_RUN), " "))
    steps.append(normalizers.Replace(" ", SPACE_MARK))
    core.normalizer = normalizers.Sequence(steps)  # type: ignore[assignment]
    return core


def _precompiled(charsmap: bytes) -> normalizers.Normalizer:
    with refused("tokenizer.ggml.precompiled_charsmap is broken"):
        return normalizers.Precompiled(charsmap)
