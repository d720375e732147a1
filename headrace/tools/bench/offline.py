"""Throughput and latency of an engine in this process: no server, no network, no client.

The one file of this folder that knows more than HTTP; it is handed an engine that is made already.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from headrace.base.errors import RequestError
from headrace.base.request import SamplingParams
from headrace.tools.bench.datasets.choose import DatasetChoice, choose
from headrace.tools.bench.datasets.made import corpus
from headrace.tools.bench.report.tables import table
from headrace.tools.bench.summary import Spread, spread

MAX_REPEATS = 1000
MAX_BATCH = 4096


class Engine(Protocol):
    """What is used of `LLM`."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, or None."""
        ...

    def generate(self, prompts: Any, params: Any = None, *, progress: bool = True) -> Sequence[Any]:
        """Complete prompts together."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition."""

    seconds: float
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds

    @property
    def total_rate(self) -> float:
        """Prompt and output tokens a second."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds


@dataclass(frozen=True, slots=True)
class Offline:
    """All repetitions; the first, which warms up, is not among them."""

    runs: tuple[Run, ...]

    @property
    def seconds(self) -> Spread:
        """Of a whole repetition."""
        return spread([run.seconds for run in self.runs])

    @property
    def output_rate(self) -> Spread:
        """Output tokens a second."""
        return spread([run.output_rate for run in self.runs])

    @property
    def total_rate(self) -> Spread:
        """Prompt and output tokens a second."""
        return spread([run.total_rate for run in self.runs])

    def json(self) -> dict[str, Any]:
        """Medians and extremes, then each repetition."""
        return {
            "seconds": asdict(self.seconds),
            "output_tokens_per_s": asdict(self.output_rate),
            "total_tokens_per_s": asdict(self.total_rate),
            "runs": [asdict(run) for run in self.runs],
        }

    def markdown(self) -> str:
        """A table: what of one repetition, over all of them."""
        run = self.runs[0]
        rows = [
            (name, *(f"{getattr(found, share):.3f}" for share in ("p50", "min", "max")))
            for name, found in (
                ("seconds", self.seconds),
                ("output tokens/s", self.output_rate),
                ("all tokens/s", self.total_rate),
            )
        ]
        work = (
            f"{len(self.runs)} repetitions of {run.requests} requests "
            f"({run.prompt_tokens} tokens in, {run.output_tokens} out)"
        )
        return table(("figure", "median", "min", "max"), rows) + f"\n\n{work}.\n"


def throughput(
    engine: Engine, dataset: DatasetChoice, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> Offline:
    """All requests at once, as fast as the engine takes them; each repetition has texts of its own.

    Raises:
        RequestError: numbers out of range, or a data set of several turns.
    """

    def batch(number: int) -> tuple[list[str], list[SamplingParams]]:
        talks = choose(replace(dataset, seed=dataset.seed + number))
        if any(len(talk.turns) > 1 for talk in talks):
            raise RequestError("throughput sends all requests at once: a data set of one turn is needed")
        turns = [talk.turns[0] for talk in talks]
        texts = ["\n\n".join(message["content"] for message in turn.messages) for turn in turns]
        return texts, [_params(turn.max_tokens) for turn in turns]

    return _repeat(engine, batch, repeats, clock)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of equal requests, in tokens."""

    size: int = 1
    input_tokens: int = 128
    output_tokens: int = 128
    seed: int = 0


def latency(
    engine: Engine, batch: Batch, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> Offline:
    """The time that a batch of equal requests takes from beginning to end.

    Raises:
        RequestError: numbers out of range, or a model without a tokenizer.
    """
    if not 1 <= batch.size <= MAX_BATCH:
        raise RequestError(f"--batch-size must be in [1, {MAX_BATCH}], got {batch.size}", param="batch_size")
    for name in ("input_tokens", "output_tokens"):
        if getattr(batch, name) < 1:
            flag = name.replace("_", "-")
            raise RequestError(f"--{flag} must be at least 1, got {getattr(batch, name)}", param=name)
    if engine.tokenizer is None:
        raise RequestError("this model brings no tokenizer; name one with --tokenizer")

    def made(number: int) -> tuple[list[list[int]], list[SamplingParams]]:
        rng = random.Random(batch.seed + number)
        prompts = [_exact(engine, rng, batch.input_tokens) for _ in range(batch.size)]
        return prompts, [_params(batch.output_tokens)] * batch.size

    return _repeat(engine, made, repeats, clock)


def _exact(engine: Engine, rng: random.Random, tokens: int) -> list[int]:
    """Running text of exactly so many tokens."""
    ids: list[int] = []
    while len(ids) < tokens:
        ids += engine.tokenizer.encode(corpus().prompt(rng, tokens + 16), add_special=False)
    return ids[:tokens]


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def _repeat(
    engine: Engine,
    batch: Callable[[int], tuple[Sequence[Any], Sequence[SamplingParams]]],
    repeats: int,
    clock: Callable[[], float],
) -> Offline:
    if not 1 <= repeats <= MAX_REPEATS:
        raise RequestError(f"--repeat must be in [1, {MAX_REPEATS}], got {repeats}", param="repeat")
    runs: list[Run] = []
    for number in range(repeats + 1):
        prompts, params = batch(number)
        start = clock()
        results = engine.generate(prompts, params, progress=False)
        seconds = clock() - start
        usage = [result.usage for result in results]
        runs.append(
            Run(
                seconds,
                len(results),
                sum(u.prompt_tokens for u in usage),
                sum(u.cached_tokens for u in usage),
                sum(u.completion_tokens for u in usage),
            )
        )
    return Offline(tuple(runs[1:]))
