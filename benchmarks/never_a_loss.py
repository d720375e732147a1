"""Whether drafting is ever a loss: a real engine, and drafts that agree by a given chance.

    python -m benchmarks.never_a_loss MODEL [--rates 0,0.5,1] [--rows 1,4,16] [--depths 1,2,4,8] [--rounds 3]

The proposer knows what each prompt's answer is without drafts; a draft is that token, or another one by the
throw of a die that depends on its place only, so that every depth meets the same luck. Ways run in turn:
`off`, `auto` (depths chosen by what is measured, in an engine of its own that knows nothing before) and fixed
depths. Speeds are tokens per second between `--warm` tokens of every row and the first end; each answer is
compared with the plain one. One line per cell: medians over the rounds, auto over off, auto over the best.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.engine import Engine
from headrace.base.ids import RequestId
from headrace.base.request import Request, SamplingParams
from headrace.base.tasks import Speculation
from headrace.compute.spec.drafting import Drafting
from headrace.compute.spec.proposer import Ask, Needs

METHOD = "ngram"
"""What the scripted proposer is called, so that settings and requests know it."""
PROMPT = 24

Answers = dict[tuple[int, ...], list[int]]


class Scripted:
    """Drafts from known answers that agree by the chance `rate`."""

    needs = Needs.NOTHING
    auto_place = 0

    def __init__(self, vocab: int) -> None:
        self.answers: Answers = {}
        self.rate = 0.0
        self._vocab = vocab

    def begin(self, slot: int) -> None:
        """Nothing is kept by slot."""

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        return [self._drafts(ask) for ask in asks]

    def _drafts(self, ask: Ask) -> list[int]:
        prompt = tuple(ask.ids[:PROMPT])
        answer, at = self.answers.get(prompt, []), len(ask.ids) - PROMPT
        right = answer[at : at + ask.most]
        luck = (Random(hash((prompt, at + i))).random() < self.rate for i in range(len(right)))
        return [t if lucky else (t + 1) % self._vocab for t, lucky in zip(right, luck, strict=True)]


@dataclass
class Subject:
    """An engine whose only proposer is scripted."""

    engine: Engine
    proposer: Scripted

    @classmethod
    def start(cls, model: Path) -> "Subject":
        engine = Engine(model, method=METHOD)
        proposer = Scripted(engine.vocab)
        runner = engine.core.runner
        drafting = Drafting({METHOD: proposer}, Speculation(METHOD))
        runner._parts = replace(runner._parts, drafting=drafting)
        return cls(engine, proposer)

    def run(self, prompts: list[tuple[int, ...]], way: str, num_tokens: int, warm: int) -> float:
        """Tokens per second of these prompts.

        Raises:
            RuntimeError: an answer is not the one that was drawn before.
        """
        core, made = self.engine.core, {}
        for i, prompt in enumerate(prompts):
            name = RequestId(f"{way}-{time.perf_counter_ns()}-{i}")
            sampling = SamplingParams(
                temperature=0, max_tokens=num_tokens, ignore_eos=True, seed=1, speculate=way
            )
            made[name] = (prompt, list[int]())
            core.add((Request(request_id=name, prompt_ids=prompt, sampling=sampling),))
        began, ended = (0.0, 0), (0.0, 0)
        while core.has_work:
            for delta in (core.step() or _NOTHING).deltas:
                made[delta.request_id][1].extend(delta.new_ids)
            lengths = [len(answer) for _, answer in made.values()]
            if not began[1] and min(lengths) >= warm:
                began = time.perf_counter(), sum(lengths)
            if max(lengths) < num_tokens:
                ended = time.perf_counter(), sum(lengths)
        for prompt, answer in made.values():
            if self.proposer.answers.setdefault(prompt, answer) != answer:
                raise RuntimeError(f"{way} gave another answer than {self.proposer.answers[prompt][:8]} ..")
        return (ended[1] - began[1]) / (ended[0] - began[0])


@dataclass(frozen=True)
class _Nothing:
    deltas: tuple[()] = ()


_NOTHING = _Nothing()


def measure(model: Path, rate: float, rows: int, args: argparse.Namespace) -> dict[str, object]:
    """One cell: tokens per second of every way, medians over the rounds."""
    fixed, auto = Subject.start(model), Subject.start(model)
    auto.proposer.answers = fixed.proposer.answers
    fixed.proposer.rate = auto.proposer.rate = rate
    ways = ["off", METHOD, *(f"{METHOD},depth={d}" for d in args.depths)]
    prompts = [fixed.engine.prompt(100 * rows + i, PROMPT) for i in range(rows)]
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    try:
        fixed.run(prompts, "off", args.tokens, args.warm)  # learns the answers
        for turn in range(args.rounds):
            for way in ways if turn % 2 == 0 else reversed(ways):
                subject = auto if way == METHOD else fixed
                speeds[way].append(subject.run(prompts, way, args.tokens, args.warm))
    finally:
        fixed.engine.close()
        auto.engine.close()
    found = {way: statistics.median(each) for way, each in speeds.items()}
    best = max(found, key=lambda way: 0.0 if way == METHOD else found[way])
    return {
        "rate": rate,
        "rows": rows,
        **{way: round(speed, 1) for way, speed in found.items()},
        "best": best,
        "auto/off": round(found[METHOD] / found["off"], 3),
        "auto/best": round(found[METHOD] / found[best], 3),
    }


def main() -> None:
    """See the module's page."""
    parser = argparse.ArgumentParser(description="whether drafting is ever a loss")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rates", default="0,0.5,1", type=lambda s: [float(x) for x in s.split(",")])
    for name, default in (("rows", "1,4,16"), ("depths", "1,2,4,8")):
        parser.add_argument(f"--{name}", default=default, type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--warm", type=int, default=60)
    args = parser.parse_args()
    for rate in args.rates:
        for rows in args.rows:
            print(json.dumps(measure(args.model, rate, rows, args)), flush=True)


if __name__ == "__main__":
    main()
