"""Data sets made on the machine: the same seed gives the same requests, lengths do not depend on the seed.

So repetitions with other seeds have the same work and share no prefix with the one before.
"""

import inspect
import math
import random
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module

from headrace.tools.bench.datasets.talk import Shape, Talk, Turn
from headrace.tools.bench.text import CHARS_PER_TOKEN, Corpus

LENGTHS_SEED = 17
SOURCES = (
    "argparse",
    "ast",
    "difflib",
    "inspect",
    "json.decoder",
    "pathlib",
    "random",
    "statistics",
    "textwrap",
)
"""Modules of the standard library whose source stands in for code."""
NAMES = ("value", "result", "index", "name", "text", "line", "item", "data")


def user(text: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    """A message of the system."""
    return {"role": "system", "content": text}


def make(name: str, shape: Shape) -> list[Talk]:
    """The talks of a made data set (a key of MADE)."""
    return MADE[name](shape)


def lengths(mean: int, spread: float, count: int, salt: int) -> list[int]:
    """Token counts with this mean: all equal, or log-normal, at least 1 and at most 8 times the mean."""
    if spread == 0:
        return [mean] * count
    rng = random.Random(LENGTHS_SEED + salt)
    sigma = math.sqrt(math.log(1 + spread * spread))
    centre = math.log(mean) - sigma * sigma / 2
    return [max(1, min(8 * mean, round(rng.lognormvariate(centre, sigma)))) for _ in range(count)]


@cache
def corpus() -> Corpus:
    """Running text; read once."""
    return Corpus()


def _pairs(shape: Shape) -> list[tuple[int, int]]:
    asked = lengths(shape.input_tokens, shape.spread, shape.num_talks, 0)
    given = lengths(shape.output_tokens, shape.spread, shape.num_talks, 1)
    return list(zip(asked, given, strict=True))


def _text(shape: Shape) -> list[Talk]:
    rng = random.Random(shape.seed)
    return [Talk((Turn((user(corpus().prompt(rng, asked)),), given),)) for asked, given in _pairs(shape)]


def _shared_prefix(shape: Shape) -> list[Talk]:
    rng = random.Random(shape.seed)
    prefixes = [system(corpus().prompt(rng, shape.prefix_tokens)) for _ in range(shape.num_prefixes)]
    return [
        Talk((Turn((prefixes[i % len(prefixes)], user(corpus().prompt(rng, asked))), given),))
        for i, (asked, given) in enumerate(_pairs(shape))
    ]


def _multi_turn(shape: Shape) -> list[Talk]:
    rng = random.Random(shape.seed)
    return [
        Talk(tuple(Turn((user(corpus().prompt(rng, asked)),), given) for _ in range(shape.turns)))
        for asked, given in _pairs(shape)
    ]


def _long_context(shape: Shape) -> list[Talk]:
    rng = random.Random(shape.seed)
    ask = "\n\nSay in a few sentences what the text above is about, and quote its first sentence."
    return [
        Talk((Turn((user(corpus().prompt(rng, max(8, asked - 20)) + ask),), given),))
        for asked, given in _pairs(shape)
    ]


@cache
def _sources() -> tuple[str, ...]:
    return tuple(inspect.getsource(import_module(name)) for name in SOURCES)


def _code_edit(shape: Shape) -> list[Talk]:
    rng = random.Random(shape.seed)
    talks: list[Talk] = []
    for asked, given in _pairs(shape):
        size = int(max(8, asked - 30) * CHARS_PER_TOKEN * 0.75)  # code has fewer characters to a token
        text = rng.choice(_sources())
        start = text.find("\n", rng.randrange(max(1, len(text) - size))) + 1
        code = text[start : start + size]
        name = rng.choice(NAMES)
        job = f"Job {rng.randrange(1 << 24):06x}"
        ask = f"{job}: rename `{name}` to `new_{name}` and print all of the code again."
        talks.append(Talk((Turn((user(f"{ask}\n\n```python\n{code}\n```"),), given),)))
    return talks


MADE: Mapping[str, Callable[[Shape], list[Talk]]] = {
    "text": _text,
    "shared-prefix": _shared_prefix,
    "multi-turn": _multi_turn,
    "long-context": _long_context,
    "code-edit": _code_edit,
}
DEFAULT_TOKENS: Mapping[str, tuple[int, int]] = {
    "text": (256, 96),
    "shared-prefix": (48, 48),
    "multi-turn": (96, 64),
    "long-context": (3000, 32),
    "code-edit": (400, 200),
}
"""Tokens in and out where none are asked for."""
DEFAULT_TURNS = 4
