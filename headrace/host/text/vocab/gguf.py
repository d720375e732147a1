"""Tokenizers from the `tokenizer.*` metadata of GGUF files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, models

from headrace.base.errors import CheckpointError
from headrace.base.specs import TextArray
from headrace.host.text.vocab import spelling
from headrace.host.text.vocab.bytepairs import quick_encoder
from headrace.host.text.vocab.endtokens import ends_by_name
from headrace.host.text.vocab.library_faults import refused
from headrace.host.text.vocab.pretokenize import WordRule, word_rule
from headrace.host.text.vocab.sentencepiece import merge_core, unigram_core
from headrace.host.text.vocab.specials import SpecialToken
from headrace.host.text.vocab.vocabulary import Encoder, LibraryEncoder, Marks, SpacePrefix, Vocabulary

MAX_ENTRIES = 4_000_000
MAX_TEMPLATE_CHARS = 1 << 20
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6


@dataclass(frozen=True, slots=True)
class Metadata:
    """Typed reading of GGUF metadata; names are without `tokenizer.ggml.`."""

    values: Mapping[str, Any]

    def list_of(self, name: str, kind: type | tuple[type, ...]) -> Sequence[Any] | None:
        """The array `name`: a list, or a `TextArray` as it is; None when absent.

        Raises:
            CheckpointError: it is no array, too long, or holds something else.
        """
        value = self.values.get(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise CheckpointError(f"tokenizer.ggml.{name} is {type(value).__name__}, not an array")
        found = cast("Sequence[Any]", value)
        if len(found) > MAX_ENTRIES:
            raise CheckpointError(
                f"tokenizer.ggml.{name} holds {len(found)} entries; the limit is {MAX_ENTRIES}"
            )
        if isinstance(found, TextArray) and kind is str:
            return found
        found = list(found)
        if (
            not all(map(kind.__instancecheck__, found))
            if isinstance(kind, type)
            else not _all_of(found, kind)
        ):
            raise CheckpointError(f"tokenizer.ggml.{name} holds entries of a wrong type")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """The flag `name`."""
        return bool(self.values.get(f"tokenizer.ggml.{name}", default))

    def token(self, name: str, num_entries: int) -> int | None:
        """The token id `name`_token_id; None when absent or marked absent (2^32 - 1).

        Raises:
            CheckpointError: it is no id of the vocabulary.
        """
        value = self.values.get(f"tokenizer.ggml.{name}_token_id")
        if value is None or value in (-1, 0xFFFFFFFF):
            return None
        if not isinstance(value, int) or not 0 <= value < num_entries:
            raise CheckpointError(
                f"tokenizer.ggml.{name}_token_id is {value!r:.80}; the vocabulary has {num_entries} entries"
            )
        return value


def read(values: Mapping[str, Any]) -> tuple[Vocabulary, Marks]:
    """Vocabulary and marks of a GGUF file.

    Args:
        values: the metadata, arrays as lists.

    Raises:
        CheckpointError: metadata is missing, broken, or names a kind of tokenizer that Headrace lacks.
    """
    data = Metadata(values)
    model = str(values.get("tokenizer.ggml.model"))
    builders = {"gpt2": _byte_level, "llama": _sentencepiece, "t5": _unigram}
    if model not in builders:
        raise CheckpointError(
            f"unknown tokenizer {model!r} (tokenizer.ggml.model); known: {', '.join(sorted(builders))}. "
            "Name the model's tokenizer.json with --tokenizer"
        )
    entries = data.list_of("tokens", str)
    if not entries:
        raise CheckpointError("the GGUF file holds no vocabulary (tokenizer.ggml.tokens)")
    if entries.has_empty if isinstance(entries, TextArray) else "" in entries:
        entries = [entry or f"[EMPTY_{i}]" for i, entry in enumerate(entries)]
    types = data.list_of("token_type", int) or [1] * len(entries)
    if len(types) != len(entries):
        raise CheckpointError(f"{len(types)} token types for {len(entries)} tokens")
    vocabulary, add_bos, add_eos = builders[model](data, entries, types)
    return vocabulary, _marks(data, vocabulary, add_bos, add_eos)


def _byte_level(
    data: Metadata, entries: Sequence[str], types: Sequence[int]
) -> tuple[Vocabulary, bool, bool]:
    rule = word_rule(data.values.get("tokenizer.ggml.pre"))
    merges = data.list_of("merges", str)
    if merges is None:
        raise CheckpointError("the GGUF file holds no merges (tokenizer.ggml.merges)")
    added = [entries[i] for i in _positions(types, _USER_DEFINED)]
    core = quick_encoder(entries, merges, rule, added) or _library_encoder(entries, merges, rule, added)
    return _vocabulary(core, entries, types, spelling.byte_level), rule.adds_bos, False


def _library_encoder(
    entries: Sequence[str], merges: Sequence[str], rule: WordRule, added: Sequence[str]
) -> Encoder:
    entries, merges = list(entries), list(merges)
    core = tokenizers.Tokenizer(_library_model(_ids(entries), _pairs(merges), ignore_merges=rule.whole_words))
    core.pre_tokenizer = rule.pre_tokenizer()  # type: ignore[assignment]
    return _with_added(core, added)


def _sentencepiece(
    data: Metadata, entries: Sequence[str], types: Sequence[int]
) -> tuple[Vocabulary, bool, bool]:
    entries = list(entries)
    scores = _scores(data, entries)
    unknown = data.token("unknown", len(entries))
    core = _with_added(
        merge_core(_ids(entries), [t == 1 for t in types], scores, entries[unknown or 0]),
        [entries[i] for i in _positions(types, _USER_DEFINED)],
    )
    prefix = SpacePrefix.EACH if data.flag("add_space_prefix", True) else SpacePrefix.NEVER
    return _vocabulary(core, entries, types, spelling.sentencepiece, prefix), True, False


def _unigram(data: Metadata, entries: Sequence[str], types: Sequence[int]) -> tuple[Vocabulary, bool, bool]:
    entries = list(entries)
    charsmap = data.list_of("precompiled_charsmap", int) or []
    core = unigram_core(
        list(zip(entries, _scores(data, entries), strict=True)),
        data.token("unknown", len(entries)) or 0,
        bytes(b & 0xFF for b in charsmap),
        squeeze=data.flag("remove_extra_whitespaces", True),
    )
    core = _with_added(core, [entries[i] for i in _positions(types, _USER_DEFINED)])
    prefix = SpacePrefix.EACH if data.flag("add_space_prefix", True) else SpacePrefix.NEVER
    return _vocabulary(core, entries, types, spelling.sentencepiece, prefix), False, True


def _vocabulary(
    core: Encoder,
    entries: Sequence[str],
    types: Sequence[int],
    spell: spelling.Spelling,
    space_prefix: SpacePrefix = SpacePrefix.NEVER,
) -> Vocabulary:
    specials = sorted([*_positions(types, _CONTROL), *_positions(types, _UNKNOWN)])
    return Vocabulary(
        core=core,
        entries=entries,
        spelling=spell,
        specials=tuple(SpecialToken(id=i, text=entries[i]) for i in specials),
        literals=frozenset(_positions(types, _USER_DEFINED)) if spell is spelling.byte_level else frozenset(),
        space_prefix=space_prefix,
    )


def _with_added(core: tokenizers.Tokenizer, added: Sequence[str]) -> Encoder:
    library: Any = core  # its type stubs are partial
    library.add_tokens([AddedToken(text, normalized=False, special=False) for text in added])
    return LibraryEncoder(core)


def _positions(types: Sequence[int], wanted: int) -> Iterator[int]:
    """Where `types` holds a value; `index` looks faster than a loop does."""
    at = -1
    while True:
        try:
            at = types.index(wanted, at + 1)
        except ValueError:
            return
        yield at


def _marks(data: Metadata, vocabulary: Vocabulary, add_bos: bool, add_eos: bool) -> Marks:
    count = len(vocabulary.entries)
    ids = {name: data.token(name, count) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    by_text = {t.text: t.id for t in vocabulary.specials}
    named = {by_text[text] for text in ends_by_name(by_text)}
    ends = {i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None}
    bos, eos = ids["bos"], ids["eos"]
    template = data.values.get("tokenizer.chat_template")
    if template is not None and (not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARS):
        raise CheckpointError(
            f"tokenizer.chat_template is {template!r:.80}; a text of at most {MAX_TEMPLATE_CHARS} characters "
            "is needed"
        )
    return Marks(
        bos_id=bos,
        end_ids=frozenset(ends | named),
        prefix=(bos,) if bos is not None and data.flag("add_bos_token", add_bos) else (),
        suffix=(eos,) if eos is not None and data.flag("add_eos_token", add_eos) else (),
        chat_template=template,
        special_tokens={
            f"{name}_token": vocabulary.entries[i]
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if (i := ids[key]) is not None
        },
    )


def _library_model(
    vocab: dict[str, int], merges: list[tuple[str, str]], *, ignore_merges: bool
) -> models.BPE:
    with refused("tokenizer.ggml.merges do not fit the vocabulary"):
        return models.BPE(vocab, merges, ignore_merges=ignore_merges)


def _ids(entries: list[str]) -> dict[str, int]:
    ids = dict(zip(entries, range(len(entries)), strict=True))
    if len(ids) != len(entries):  # of equal entries the first counts
        ids = dict(zip(reversed(entries), range(len(entries) - 1, -1, -1), strict=True))
    return ids


def _pairs(merges: list[str]) -> list[tuple[str, str]]:
    pairs = cast("list[tuple[str, str]]", [m.partition(" ")[::2] for m in merges])
    return pairs if all(map(all, pairs)) else [_pair(m) for m in merges]


def _pair(merge: str) -> tuple[str, str]:
    # A part may itself begin with a space, so the separator is looked for after the first character.
    cut = merge.find(" ", 1)
    if cut < 1:
        raise CheckpointError(
            f"merge {merge!r} (tokenizer.ggml.merges) is not two parts with a space between"
        )
    return merge[:cut], merge[cut + 1 :]


def _scores(data: Metadata, entries: Sequence[str]) -> list[float]:
    scores = data.list_of("scores", (int, float))
    if scores is None or len(scores) != len(entries):
        raise CheckpointError(
            f"{0 if scores is None else len(scores)} scores (tokenizer.ggml.scores) for {len(entries)} tokens"
        )
    return [float(s) for s in scores]


def _all_of(values: list[Any], kinds: tuple[type, ...] | type) -> bool:
    return all(isinstance(v, kinds) for v in values)
