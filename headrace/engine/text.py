"""The text side of a model.

Tokenizer, chat template, end tokens; or none of it, for models of token ids only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.base.errors import CheckpointError, RequestError
from headrace.base.specs import GenerationDefaults, TokenizerSource
from headrace.host.text.chat import ChatTemplate
from headrace.host.text.parts.splitter import ReasoningMarks
from headrace.host.text.tokenizer import Tokenizer, load_tokenizer
from headrace.host.text.tools.dialect import Dialect, find_dialect
from headrace.host.text.tools.reasoning import find_reasoning

NO_TOKENIZER = "this model has no tokenizer: send token ids, or name one with model.tokenizer"


@dataclass(frozen=True)
class Text:
    """What turns text into token ids and back. Immutable, shared between threads.

    `end_ids` are those of every source: tokenizer files and generation file.
    """

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate
    end_ids: frozenset[int]

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text of b bytes has at least b / this many tokens."""
        if self.tokenizer is None:
            return 1
        return max((len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size)), default=1)

    def encode(self, text: str, most: int | None = None) -> tuple[int, ...]:
        """Ids of a raw prompt: begin token once, special tokens in the text are read as such.

        Raises:
            RequestError: there is no tokenizer, or the text is not valid Unicode.
            TooManyTokensError: they are more than `most`.
        """
        return tuple(self._tokenizer().encode(text, add_special=True, parse_special=True, most=most))

    def encode_words(self, word: str) -> list[tuple[int, ...]]:
        """Ids of a word at the beginning of a text and after a space."""
        tokenizer = self._tokenizer()
        spellings = [
            tuple(tokenizer.encode(w, add_special=False, parse_special=False)) for w in (word, f" {word}")
        ]
        return [ids for i, ids in enumerate(spellings) if ids and ids not in spellings[:i]]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], most: int | None = None
    ) -> tuple[int, ...]:
        """Ids of a conversation; the template is the authority on begin tokens.

        Raises:
            RequestError: no tokenizer, no template, or the template refuses.
            TooManyTokensError: they are more than `most`.
        """
        return tuple(self.chat_template.encode(self._tokenizer(), messages, most, **options))

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """The ids of those texts that are special tokens."""
        if self.tokenizer is None:
            return frozenset()
        found = (self.tokenizer.token_id(text) for text in texts)
        return frozenset(i for i in found if i is not None and self.tokenizer.is_special(i))

    def tail(self, ids: Sequence[int], count: int) -> str:
        """The text of the last `count` ids, special tokens spelled out."""
        return self._tokenizer().decode(ids[-count:], skip_special=False)

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes tool calls."""
        return find_dialect(self.chat_template)

    @cached_property
    def reasoning(self) -> ReasoningMarks | None:
        """What the model puts around its reasoning; None: it does not reason."""
        return find_reasoning(self.chat_template, self.tokenizer)

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(NO_TOKENIZER, param="prompt")
        return self.tokenizer


def load_text(source: TokenizerSource, generation: GenerationDefaults, override: str | None) -> Text:
    """The text side of a checkpoint.

    Args:
        source: where the checkpoint says its tokenizer is.
        generation: end tokens that the checkpoint's generation file adds.
        override: `tokenizer.json` or its folder, instead of the checkpoint's own.

    Raises:
        CheckpointError: a tokenizer that is there is broken; or the override is missing.
    """
    if override is not None:
        path = Path(override)
        folder = path.parent if path.is_file() else path
        if not (folder / "tokenizer.json").is_file():
            raise CheckpointError(f"model.tokenizer {override!r} is no tokenizer.json and holds none")
        source = TokenizerSource(directory=folder)
    ends = frozenset(generation.end_ids)
    if not has_tokenizer(source):
        return Text(None, ChatTemplate(None, {}), ends)
    tokenizer = load_tokenizer(source)
    template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
    return Text(tokenizer, template, ends | tokenizer.end_ids)


def has_tokenizer(source: TokenizerSource) -> bool:
    """Whether there is anything that looks like one."""
    if source.gguf is not None:
        return any(key.startswith("tokenizer.") for key in source.gguf)
    return source.directory is not None and any(
        (source.directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    )


NO_TEXT = Text(None, ChatTemplate(None, {}), frozenset())
"""For the process that only computes."""
