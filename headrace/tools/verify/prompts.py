"""Prompts to verify with: those of a file, or built-in ones of many lengths, some with a common beginning."""

import json
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigError

MAX_PROMPTS = 256
MAX_FILE_BYTES = 16 << 20
_STORY = (
    "The river came down from the hills in spring, and the millers opened the gates one after the other. "
    "Whoever lived below counted the hours until the water arrived, wrote them down, and compared them with "
    "those of the year before. "
)
BUILT_IN = (
    "Hi",
    "The capital of France is",
    "Write a function that adds two numbers.\n\ndef add(",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    _STORY + "The first thing that the miller wrote down was",
    _STORY + "What the people below did not know was",
    _STORY * 6 + "In short,",
    _STORY * 10 + "In one word:",
)
"""Long and short ones; three pairs share their beginning."""


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file: JSON lines with `prompt` (or strings), else one prompt per line.

    Raises:
        ConfigError: it cannot be read, or holds none or too many.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; take fewer prompts")
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts cannot be read: {error}") from error
    prompts = tuple(_prompt(line, number, path) for number, line in enumerate(lines, 1))
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise ConfigError(f"{path} holds {len(prompts)} prompts; 1 to {MAX_PROMPTS} can be verified")
    return prompts


def _prompt(line: str, number: int, path: Path) -> str:
    if line[0] not in '{"':
        return line
    try:
        found: Any = json.loads(line)
    except ValueError:
        return line  # a text that begins like JSON
    text = found.get("prompt") if isinstance(found, dict) else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(text, str) or not text:
        raise ConfigError(f'{path}, line {number}: a JSON line needs "prompt", a text')
    return text
