"""Data sets from files: ShareGPT-form JSON, JSON lines, recorded traces (our form and Mooncake's).

A line of JSON: `{"messages": [...]}` or `{"prompt": "..."}`, with `max_tokens` where 128 does not fit; or
ShareGPT's `{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}`. A trace's line
has `at_s` (seconds) besides, or Mooncake's `timestamp` (milliseconds), `input_length`, `output_length`,
`hash_ids` (Qin et al. 2024, arXiv:2407.00079): for these a text of that length is made, equal for equal ids.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from headrace.base.errors import RequestError
from headrace.tools.bench.datasets.made import corpus, user
from headrace.tools.bench.datasets.talk import Talk, Turn
from headrace.tools.bench.text import CHARS_PER_TOKEN

HASHED_TOKENS = 512
"""Tokens that one of Mooncake's hash ids stands for."""
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def read(path: Path, *, output_tokens: int | None, turns: int) -> list[Talk]:
    """All talks of a file, in its order.

    Args:
        path: the file; a `.jsonl` file has a request a line, others one JSON list.
        output_tokens: most tokens of each answer; None: what the file says, or the length of its answers.
        turns: most turns of a conversation.

    Raises:
        RequestError: the file or one of its entries cannot be used; names the entry.
    """
    try:
        text = path.read_text()
        is_lines = path.suffix == ".jsonl"
        found: Any = (
            [json.loads(line) for line in text.splitlines() if line.strip()] if is_lines else json.loads(text)
        )
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read the data set {path}: {error}", param="dataset") from error
    if not isinstance(found, list) or not found:
        raise RequestError(f"{path} must hold a list of requests, at least one", param="dataset")
    talks: list[Talk] = []
    for number, entry in enumerate(cast("list[Any]", found), 1):
        try:
            talks.append(_talk(entry, output_tokens, turns))
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"{path}, entry {number}: {error}; needs messages, prompt, conversations or input_length",
                param="dataset",
            ) from error
    return talks


def _talk(entry: Any, output_tokens: int | None, turns: int) -> Talk:
    if not isinstance(entry, dict):
        raise TypeError(f"{str(entry)[:40]!r} is no object")
    entry = cast("dict[str, Any]", entry)
    said = output_tokens or entry.get("max_tokens") or entry.get("output_length")
    at_s = _at(entry)
    if "conversations" in entry:
        return Talk(_conversation(entry["conversations"], output_tokens, turns), at_s)
    if "messages" in entry:
        messages = tuple(
            {"role": str(message["role"]), "content": str(message["content"])}
            for message in entry["messages"]
        )
        if not messages:
            raise ValueError("it has no messages")
    elif "prompt" in entry:
        messages = (user(str(entry["prompt"])),)
    else:
        messages = (user(_hashed(int(entry["input_length"]), entry.get("hash_ids") or [])),)
    return Talk((Turn(messages, _positive(said or 128)),), at_s)


def _at(entry: Mapping[str, Any]) -> float | None:
    if "at_s" in entry:
        return float(entry["at_s"])
    return float(entry["timestamp"]) / 1000 if "timestamp" in entry else None


def _positive(value: Any) -> int:
    if int(value) < 1:
        raise ValueError(f"max_tokens {value} is less than 1")
    return int(value)


def _conversation(said: Any, output_tokens: int | None, turns: int) -> tuple[Turn, ...]:
    """Turns of the user; recorded answers give lengths only: the server's own become the history."""
    made: list[Turn] = []
    pending: list[dict[str, str]] = []
    for message in said:
        role, text = ROLES[str(message["from"])], str(message["value"])
        if role != "assistant":
            pending.append({"role": role, "content": text})
        elif pending and len(made) < turns:
            length = output_tokens or max(1, round(len(text) / CHARS_PER_TOKEN))
            made.append(Turn(tuple(pending), length))
            pending = []
    if not made:
        raise ValueError("its conversation has no question with an answer")
    return tuple(made)


def _hashed(tokens: int, ids: list[Any]) -> str:
    """Text of a length; equal ids at the beginning give an equal beginning."""
    parts = [corpus().cut(random.Random(f"hash {known}"), HASHED_TOKENS) for known in ids]
    text = " ".join(parts) if parts else corpus().prompt(random.Random(), tokens)
    return text[: max(1, int(_positive(tokens) * CHARS_PER_TOKEN))]
