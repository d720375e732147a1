"""From the name of a data set, or the path of a file, to its talks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import RequestError
from headrace.tools.bench.datasets.files import read
from headrace.tools.bench.datasets.made import DEFAULT_TOKENS, DEFAULT_TURNS, MADE, make
from headrace.tools.bench.datasets.talk import Shape, Talk

DEFAULT_TALKS = 64


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """What the user asked for; None takes the data set's own default."""

    name: str = "text"
    """A made data set, or a path."""
    num_talks: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    spread: float = 0.0
    prefix_tokens: int = 1024
    num_prefixes: int = 1
    turns: int | None = None
    seed: int = 0


def choose(choice: DatasetChoice) -> list[Talk]:
    """The talks.

    Raises:
        RequestError: no such data set or file, or numbers out of range; names the value and the limit.
    """
    _check(choice)
    if choice.name not in MADE:
        return _from_file(choice)
    asked, given = DEFAULT_TOKENS[choice.name]
    turns = choice.turns or (DEFAULT_TURNS if choice.name == "multi-turn" else 1)
    if turns > 1 and choice.name != "multi-turn":
        raise RequestError(
            f"the data set {choice.name} has one turn; --turns goes with multi-turn", param="turns"
        )
    shape = Shape(
        num_talks=choice.num_talks or DEFAULT_TALKS,
        input_tokens=choice.input_tokens or asked,
        output_tokens=choice.output_tokens or given,
        spread=choice.spread,
        prefix_tokens=choice.prefix_tokens,
        num_prefixes=choice.num_prefixes,
        turns=turns,
        seed=choice.seed,
    )
    return make(choice.name, shape)


def _check(choice: DatasetChoice) -> None:
    for name in ("num_talks", "input_tokens", "output_tokens", "prefix_tokens", "num_prefixes", "turns"):
        value = getattr(choice, name)
        if value is not None and not 1 <= value <= 10_000_000:
            flag = name.replace("num_talks", "num_requests").replace("_", "-")
            raise RequestError(f"--{flag} must be in [1, 10000000], got {value}", param=name)
    if not 0 <= choice.spread <= 3:
        raise RequestError(f"--spread must be in [0, 3], got {choice.spread:g}", param="spread")


def _from_file(choice: DatasetChoice) -> list[Talk]:
    path = Path(choice.name)
    if not path.is_file():
        raise RequestError(
            f"no data set {choice.name!r}: one of {', '.join(MADE)}, or the path of a .json or .jsonl file",
            param="dataset",
        )
    if choice.input_tokens is not None:
        raise RequestError(
            "--input-tokens goes with made data sets; a file brings its prompts", param="input_tokens"
        )
    talks = read(path, output_tokens=choice.output_tokens, turns=choice.turns or 1)
    wanted = choice.num_talks or len(talks)
    if wanted > len(talks):
        raise RequestError(
            f"{path} holds {len(talks)} requests and {wanted} are asked for; lower --num-requests "
            "(asking the same again would measure the prefix cache)",
            param="num_requests",
        )
    return _some(talks, wanted, choice.seed)


def _some(talks: Sequence[Talk], wanted: int, seed: int) -> list[Talk]:
    """A trace's beginning; of other files a sample without repetition."""
    if any(talk.at_s is not None for talk in talks):
        return list(talks[:wanted])
    return random.Random(seed).sample(talks, wanted)
