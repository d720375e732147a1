"""Log-probabilities in the three JSON forms: chat, completions, and vLLM's `prompt_logprobs`.

Values are raw natural logarithms; minus infinity is reported as -9999, as OpenAI does.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from headrace.base.step import TokenLogprobs

FLOOR = -9999.0


class Vocabulary(Protocol):
    """What is needed of a tokenizer here."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for."""
        ...


class NoVocabulary:
    """The vocabulary of a model without a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """No bytes."""
        del token_id
        return b""


def chat_logprobs(tokens: Iterable[TokenLogprobs], vocabulary: Vocabulary) -> dict[str, Any]:
    """`logprobs` of a chat choice: `content` with one entry per token, bytes included."""
    content: list[dict[str, Any]] = []
    for token in tokens:
        tops = zip(token.top_ids, token.top_logprobs, strict=True)
        content.append(
            _chat_entry(token.token_id, token.logprob, vocabulary)
            | {"top_logprobs": [_chat_entry(i, value, vocabulary) for i, value in tops]}
        )
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[TokenLogprobs | int], vocabulary: Vocabulary, offset: int, top: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice: four parallel lists.

    Args:
        tokens: one per token; a bare id (the first token of an echoed prompt) has no value.
        vocabulary: the tokenizer.
        offset: characters of the choice's tokens before these.
        top: alternatives asked for; none are listed when it is 0.
    """
    made: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for token in tokens:
        token_id = token if isinstance(token, int) else token.token_id
        text = token_label(token_id, vocabulary)
        made["text_offset"].append(offset)
        made["tokens"].append(text)
        offset += token_width(token_id, vocabulary)
        if isinstance(token, int):
            made["token_logprobs"].append(None)
            made["top_logprobs"].append(None)
            continue
        made["token_logprobs"].append(max(token.logprob, FLOOR))
        pairs = [
            (text, token.logprob),
            *(
                (token_label(i, vocabulary), v)
                for i, v in zip(token.top_ids, token.top_logprobs, strict=True)
            ),
        ]
        made["top_logprobs"].append({label: max(v, FLOOR) for label, v in reversed(pairs)} if top else {})
    return made


def prompt_logprobs(
    tokens: Sequence[TokenLogprobs | None], vocabulary: Vocabulary
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: per token a map from id to value, rank and text; None for the first."""
    made: list[dict[str, Any] | None] = []
    for token in tokens:
        if token is None:
            made.append(None)
            continue
        tops = zip(token.top_ids, token.top_logprobs, strict=True)
        entries = {str(i): _prompt_entry(i, v, n, vocabulary) for n, (i, v) in enumerate(tops, start=1)}
        entries[str(token.token_id)] = _prompt_entry(token.token_id, token.logprob, token.rank, vocabulary)
        made.append(entries)
    return made


def token_label(token_id: int, vocabulary: Vocabulary) -> str:
    """A token as text; one that is no whole character as `bytes:` and its bytes, so that none look alike."""
    raw = vocabulary.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)


def token_width(token_id: int, vocabulary: Vocabulary) -> int:
    """Characters a token begins: its bytes that are not continuation bytes of UTF-8."""
    return sum((b & 0xC0) != 0x80 for b in vocabulary.token_bytes(token_id))


def _chat_entry(token_id: int, value: float, vocabulary: Vocabulary) -> dict[str, Any]:
    raw = vocabulary.token_bytes(token_id)
    return {"token": raw.decode(errors="replace"), "logprob": max(value, FLOOR), "bytes": list(raw)}


def _prompt_entry(token_id: int, value: float, rank: int, vocabulary: Vocabulary) -> dict[str, Any]:
    text = vocabulary.token_bytes(token_id).decode(errors="replace")
    return {"logprob": max(value, FLOOR), "rank": rank, "decoded_token": text}
