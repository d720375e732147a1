"""Tokenizers from checkpoint directories: tokenizer.json and the small files beside it."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import pre_tokenizers

from headrace.base.errors import CheckpointError
from headrace.host.text.vocab import spelling
from headrace.host.text.vocab.endtokens import ends_by_name
from headrace.host.text.vocab.library_faults import refused
from headrace.host.text.vocab.specials import SpecialToken
from headrace.host.text.vocab.vocabulary import LibraryEncoder, Marks, SpacePrefix, Vocabulary

MAX_TOKENIZER_BYTES = 256 << 20
MAX_CONFIG_BYTES = 16 << 20
MAX_TOKEN_ID = 4_000_000
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    tokenizer: Json
    """tokenizer_config.json"""
    special_map: Json
    generation: Json
    model: Json
    """config.json"""
    template: str | None


def read(source: Path) -> tuple[Vocabulary, Marks]:
    """Vocabulary and marks of a checkpoint directory (or of a tokenizer.json and what lies beside it).

    Raises:
        CheckpointError: a file is missing or broken, or asks for something Headrace lacks.
    """
    folder = source if source.is_dir() else source.parent
    path = source / "tokenizer.json" if source.is_dir() else source
    core = _load(path)
    files = _Files(
        tokenizer=_json(folder / "tokenizer_config.json"),
        special_map=_json(folder / "special_tokens_map.json"),
        generation=_json(folder / "generation_config.json"),
        model=_json(folder / "config.json"),
        template=_text(folder / "chat_template.jinja"),
    )
    prefix, suffix = _wrapping(core)
    space_prefix = _take_space_prefix(core)
    vocabulary = _vocabulary(core, path, space_prefix)
    return vocabulary, _marks(files, vocabulary, prefix, suffix)


def _load(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; Headrace reads fast tokenizers (tokenizer.json). "
            "Save one with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes; the limit is {MAX_TOKENIZER_BYTES}")
    with refused(f"{path} is not a tokenizer that the tokenizers library reads"):
        core = tokenizers.Tokenizer.from_file(str(path))
    core.no_truncation()
    core.no_padding()
    core.encode_special_tokens = True  # special tokens are split off before the library sees the text
    return core


def _vocabulary(core: tokenizers.Tokenizer, path: Path, space_prefix: SpacePrefix) -> Vocabulary:
    ids = core.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if size > MAX_TOKEN_ID:
        raise CheckpointError(f"{path} has token id {size - 1}; the limit is {MAX_TOKEN_ID}")
    entries = [""] * size
    for entry, token_id in ids.items():
        entries[token_id] = entry
    added = core.get_added_tokens_decoder()
    return Vocabulary(
        core=LibraryEncoder(core),
        entries=entries,
        spelling=_spelling(core, path),
        specials=tuple(
            SpecialToken(
                id=i,
                text=token.content,
                strip_left=token.lstrip,
                strip_right=token.rstrip,
                single_word=token.single_word,
            )
            for i, token in added.items()
            if token.special
        ),
        literals=frozenset(i for i, token in added.items() if not token.special),
        space_prefix=space_prefix,
    )


def _part(core: tokenizers.Tokenizer, name: str) -> Json:
    """The JSON of one part of the pipeline (`decoder`, `pre_tokenizer` ...); empty when it has none."""
    part: Any = getattr(core, name)
    return json.loads(part.__getstate__()) if part is not None else {}


def _steps(part: Json, key: str) -> list[Json]:
    return cast("list[Json]", part[key]) if part.get("type") == "Sequence" else [part] if part else []


def _spelling(core: tokenizers.Tokenizer, path: Path) -> spelling.Spelling:
    kinds = {step["type"] for step in _steps(_part(core, "decoder"), "decoders")}
    known: Mapping[str, spelling.Spelling] = {
        "ByteLevel": spelling.byte_level,
        "Metaspace": spelling.sentencepiece,
        "ByteFallback": spelling.sentencepiece,
        "Replace": spelling.sentencepiece,
    }
    for kind, spell in known.items():
        if kind in kinds:
            return spell
    raise CheckpointError(
        f"{path} decodes with {', '.join(sorted(kinds)) or 'nothing'}; Headrace knows {', '.join(known)}"
    )


def _wrapping(core: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the file puts before and after a text.

    Raises:
        CheckpointError: the file's pipeline fails on a plain text.
    """
    with refused("tokenizer.json cannot encode a plain text"):
        plain = core.encode("a", add_special_tokens=False).ids
        full = core.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start]), tuple(full[start + len(plain) :])
    return (), ()


def _take_space_prefix(core: tokenizers.Tokenizer) -> SpacePrefix:
    """Takes a space prefix that depends on the place in the text out of the pipeline, and says what it was.

    Pieces are encoded one by one, so the library would take each for the beginning.
    """
    strips = any(s["type"] == "Strip" and s.get("start") for s in _steps(_part(core, "decoder"), "decoders"))
    steps = _steps(_part(core, "pre_tokenizer"), "pretokenizers")
    scheme = next((s.get("prepend_scheme") for s in steps if s["type"] == "Metaspace"), None)
    if scheme == "first":
        _never_prepend(core)
        return SpacePrefix.FIRST
    if scheme == "always" or strips:
        return SpacePrefix.BY_LIBRARY
    return SpacePrefix.NEVER


def _never_prepend(core: tokenizers.Tokenizer) -> None:
    part: Any = core.pre_tokenizer
    steps = list(cast("Iterable[Any]", part)) if isinstance(part, pre_tokenizers.Sequence) else [part]
    for step in steps:
        if isinstance(step, pre_tokenizers.Metaspace):
            step.prepend_scheme = "never"


def _marks(files: _Files, vocabulary: Vocabulary, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Marks:
    ids = vocabulary.core.token_to_id
    texts = _special_texts(files, ids)
    bos = ids(texts["bos_token"]) if "bos_token" in texts else None
    eos = ids(texts["eos_token"]) if "eos_token" in texts else None
    ends = _listed_ends(files)
    if eos is not None:
        ends.add(eos)
    if not files.generation:
        by_text = {t.text: t.id for t in vocabulary.specials}
        ends |= {by_text[text] for text in ends_by_name(by_text)}
    return Marks(
        bos_id=bos,
        end_ids=frozenset(ends),
        prefix=_with_mark(prefix, bos, files.tokenizer.get("add_bos_token")),
        suffix=_with_mark(suffix, eos, files.tokenizer.get("add_eos_token")),
        chat_template=_template(files),
        special_tokens=texts,
    )


def _with_mark(ids: tuple[int, ...], mark: int | None, wanted: Any) -> tuple[int, ...]:
    """The ids with or without the mark, as tokenizer_config.json wants; None leaves them."""
    if mark is None or wanted is None or wanted is (mark in ids):
        return ids
    return (mark, *ids) if wanted else tuple(i for i in ids if i != mark)


def _special_texts(files: _Files, ids: Callable[[str], int | None]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _TOKEN_NAMES:
        for table in (files.tokenizer, files.special_map):
            value = table.get(name)
            text = value.get("content") if isinstance(value, dict) else value  # type: ignore[union-attr]
            if isinstance(text, str) and ids(text) is not None:
                found.setdefault(name, text)
    return found


def _listed_ends(files: _Files) -> set[int]:
    """End tokens that generation_config.json and config.json list."""
    ends: set[int] = set()
    inner = files.model.get("text_config")
    for table in (files.generation, files.model, cast("Json", inner) if isinstance(inner, dict) else {}):
        value = table.get("eos_token_id")
        listed = cast("list[Any]", value) if isinstance(value, list) else [value]
        ends |= {i for i in listed if type(i) is int and i >= 0}
    return ends


def _template(files: _Files) -> str | None:
    if files.template is not None:
        return files.template
    value = files.tokenizer.get("chat_template")
    if isinstance(value, list):  # several by name
        entries = [cast("Json", t) for t in cast("list[Any]", value) if isinstance(t, dict)]
        value = next((t.get("template") for t in entries if t.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes; the limit is {MAX_CONFIG_BYTES}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"{path} is not UTF-8: {fault}") from fault


def _json(path: Path) -> Json:
    text = _text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise CheckpointError(f"{path} is not JSON: {fault}") from fault
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, not an object")
    return cast("Json", value)
