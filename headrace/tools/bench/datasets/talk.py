"""The values of a data set, and the shape that made ones are asked for."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages that a user adds to the conversation, and the most tokens of the answer."""

    messages: tuple[Mapping[str, str], ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Talk:
    """Turns in order; each waits for the answer to the one before, which becomes part of the next prompt."""

    turns: tuple[Turn, ...]
    at_s: float | None = None
    """When a recorded trace sent it, seconds from its beginning."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths of what is made. Tokens are estimated from characters; the server's own count is reported."""

    num_talks: int
    input_tokens: int
    output_tokens: int
    spread: float = 0.0
    """Standard deviation over mean of both lengths (log-normal); 0: all are equal."""
    prefix_tokens: int = 1024
    """Of the system prompt that requests share."""
    num_prefixes: int = 1
    """Different shared system prompts."""
    turns: int = 1
    seed: int = 0
    """Of the texts."""
