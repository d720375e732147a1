"""What `headrace distill` is asked for."""

from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.tools.distill.states import MAX_TOKENS

METHODS = ("medusa", "eagle")
MAX_TEXT_TOKENS = 400_000
"""Tokens of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for. See the command's help.

    Raises:
        ConfigError: a value out of range.
    """

    method: str
    out: Path
    prompts: Path | None = None
    minutes: float = 10.0
    heads: int = 4
    vocab: int = 4096
    temperature: float = 0.7
    max_tokens: int = 192
    seed: int = 0
    text_tokens: int = MAX_TEXT_TOKENS
    steps: int | None = None
    resume: bool = False
    """Go on from the heads that `out` holds."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.method not in METHODS:
            raise ConfigError(
                f"--heads must be one of {', '.join(METHODS)}, got {self.method!r:.40}", param="heads"
            )
        for name, low, high in (
            ("minutes", 0.01, 10_000),
            ("heads", 1, 16),
            ("vocab", 16, 1 << 20),
            ("temperature", 0, 2),
            ("max_tokens", 16, MAX_TOKENS - 64),
            ("seed", 0, 1 << 62),
            ("text_tokens", 64, 1 << 32),
            ("steps", 1, 1 << 32),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                flag = {"heads": "depth", "max_tokens": "max-tokens"}.get(name, name)
                raise ConfigError(f"--{flag} must be in [{low}, {high}], got {value}", param=name)
