"""Prompts cut from Python's own documentation: machines with the same Python send the same requests."""

import random
import re
from dataclasses import dataclass, field
from pydoc_data import topics

CHARS_PER_TOKEN = 4.4


def _words() -> list[str]:
    text = " ".join(topics.topics[name] for name in sorted(topics.topics))
    words = re.sub(r"[*\-=_~^.]{3,}", " ", text).split()
    return [w for w in words if len(w) <= 24 and 2 * sum(c.isalpha() for c in w) >= len(w)]


@dataclass
class Corpus:
    """Running text of a chosen length from a random place."""

    words: list[str] = field(default_factory=_words)

    def cut(self, rng: random.Random, tokens: int) -> str:
        """Text of about so many tokens."""
        at, out, size = rng.randrange(len(self.words)), list[str](), 0
        while size < tokens * CHARS_PER_TOKEN:
            word = self.words[at % len(self.words)]
            out.append(word)
            size += len(word) + 1
            at += 1
        return " ".join(out)

    def prompt(self, rng: random.Random, tokens: int) -> str:
        """Text whose first words are unique, so that nothing is shared by chance."""
        return f"Note {rng.randrange(1 << 24):06x}. " + self.cut(rng, max(1, tokens - 7))
