"""Whether drafting is ever a loss: a real engine, drafts that agree by a given chance. Prints, judges not.

    python -m benchmarks.never_a_loss MODEL [--rates 0,0.5,1] [--rows 1,4,16] [--depths 1,2,4,8] [--rounds 3]

The proposer knows what each prompt's answer is without drafts; a draft is that token, or another one by the
throw of a die that depends on its place only, so that every depth meets the same luck. Ways are `off`, `auto`
(depths chosen by what is measured; knows nothing when a cell begins) and fixed depths, each with an engine of
its own. They take turns of 50 ms: what else the machine does meets all alike, and lasts longer than a
turn. Speeds are tokens per second of steps after `--warm` tokens of every row until the first end, of all
rounds together (`--warm 1 --rounds 1`: a cold start); each answer is compared with the plain one. One line
per cell: auto over off, and over the best.
"""

import argparse
import json
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
from headrace.host.sched.drafts.depth import Depth

METHOD = "ngram"
"""What the scripted proposer is called, so that settings and requests know it."""
PROMPT = 24
KV_BLOCKS = 512
SLICE_S = 0.05
"""Of a turn."""

Prompts = list[tuple[int, ...]]
Answers = dict[tuple[int, ...], list[int]]


class Scripted:
    """Drafts from known answers that agree by the chance `rate`."""

    needs = Needs.NOTHING
    auto_place = 0

    def __init__(self, vocab: int) -> None:
        self.answers: Answers = {}
        self.rate = 0.0
        self._vocab = vocab
        self._scripts: dict[tuple[tuple[int, ...], float], list[int]] = {}

    def begin(self, slot: int) -> None:
        """Nothing is kept by slot."""

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask."""
        return [self._drafts(ask) for ask in asks]

    def _drafts(self, ask: Ask) -> list[int]:
        prompt = tuple(ask.ids[:PROMPT])
        script = self._scripts.get((prompt, self.rate))
        if script is None:  # made once: throws take longer than real proposers do
            answer = self.answers.get(prompt, [])
            luck = (Random(hash((prompt, at))).random() < self.rate for at in range(len(answer)))
            script = [t if lucky else (t + 1) % self._vocab for t, lucky in zip(answer, luck, strict=True)]
            self._scripts[prompt, self.rate] = script
        at = len(ask.ids) - PROMPT
        return script[at : at + ask.most]


@dataclass
class Subject:
    """An engine whose only proposer is scripted."""

    engine: Engine
    proposer: Scripted

    @classmethod
    def start(cls, model: Path) -> "Subject":
        # The same pages of weights for all: copies of one engine read faster than another's, by their place.
        engine = Engine(model, method=METHOD, num_blocks=KV_BLOCKS, weight_cache="map")
        proposer = Scripted(engine.vocab)
        runner = engine.core.runner
        drafting = Drafting({METHOD: proposer}, Speculation(METHOD))
        runner._parts = replace(runner._parts, drafting=drafting)
        return cls(engine, proposer)

    def forget(self) -> None:
        """Let the controller of drafts know nothing."""
        scheduler, old = self.engine.core.scheduler, self.engine.core.scheduler.drafts
        scheduler.drafts = scheduler._planner.drafts = Depth(old._offered, old._room)

    def begin(self, prompts: Prompts, way: str, num_tokens: int, warm: int) -> "Run":
        """Add these prompts; the engine has nothing else."""
        made: dict[RequestId, tuple[tuple[int, ...], list[int]]] = {}
        for i, prompt in enumerate(prompts):
            name = RequestId(f"{way}-{time.perf_counter_ns()}-{i}")
            sampling = SamplingParams(
                temperature=0, max_tokens=num_tokens, ignore_eos=True, seed=1, speculate=way
            )
            made[name] = (prompt, [])
            self.engine.core.add((Request(request_id=name, prompt_ids=prompt, sampling=sampling),))
        return Run(self, way, made, num_tokens, warm)


@dataclass
class Run:
    """Answers of one way, which are drawn slice by slice."""

    subject: Subject
    way: str
    made: dict[RequestId, tuple[tuple[int, ...], list[int]]]
    most: int
    warm: int
    seconds: float = 0.0
    tokens: int = 0

    def go_on(self, slice_s: float) -> bool:
        """Draw for so long; returns whether there is more.

        Raises:
            RuntimeError: an answer is not the one that was drawn before.
        """
        core, began_s = self.subject.engine.core, time.perf_counter()
        while core.has_work and time.perf_counter() - began_s < slice_s:
            before = [len(answer) for _, answer in self.made.values()]
            step_s = time.perf_counter()
            for delta in (core.step() or _NOTHING).deltas:
                self.made[delta.request_id][1].extend(delta.new_ids)
            after = [len(answer) for _, answer in self.made.values()]
            if min(before) >= max(self.warm, 1) and max(after) < self.most:
                self.seconds += time.perf_counter() - step_s
                self.tokens += sum(after) - sum(before)
        if core.has_work:
            return True
        answers = self.subject.proposer.answers
        for prompt, answer in self.made.values():
            if answers.setdefault(prompt, answer) != answer:
                raise RuntimeError(f"{self.way} gave another answer than {answers[prompt][:8]} ..")
        return False


@dataclass(frozen=True)
class _Nothing:
    deltas: tuple[()] = ()


_NOTHING = _Nothing()


def measure(
    subjects: dict[str, Subject], rate: float, rows: int, args: argparse.Namespace
) -> dict[str, object]:
    """One cell: tokens per second of every way, all rounds together; `subjects` by way."""
    engine = next(iter(subjects.values())).engine
    prompts = [engine.prompt(100 * rows + i, PROMPT) for i in range(rows)]
    for subject in subjects.values():
        subject.proposer.rate = rate
        subject.forget()
    first = subjects["off"].begin(prompts, "off", args.tokens, args.warm)
    while first.go_on(SLICE_S):  # learns the answers
        pass
    runs: dict[str, list[Run]] = {way: [] for way in subjects}
    for _ in range(args.rounds):
        going = [subject.begin(prompts, way, args.tokens, args.warm) for way, subject in subjects.items()]
        for run in going:
            runs[run.way].append(run)
        while going:
            going = [run for run in going if run.go_on(SLICE_S)]
    found = {
        way: sum(run.tokens for run in each) / sum(run.seconds for run in each) for way, each in runs.items()
    }
    best = max(found, key=lambda way: 0.0 if way == METHOD else found[way])
    return {
        "rate": rate,
        "rows": rows,
        **{_shown(way): round(speed, 1) for way, speed in found.items()},
        "best": _shown(best),
        "auto/off": round(found[METHOD] / found["off"], 3),
        "auto/best": round(found[METHOD] / found[best], 3),
    }


def _shown(way: str) -> str:
    """Where the proposer is asked for no depth, it is chosen, whatever the proposer is called."""
    return "auto" if way == METHOD else way


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
    subjects: dict[str, Subject] = {}
    answers: Answers = {}
    try:
        for way in ("off", METHOD, *(f"{METHOD},depth={d}" for d in args.depths)):
            subjects[way] = Subject.start(args.model)
            subjects[way].proposer.answers = answers
        for rate in args.rates:
            for rows in args.rows:
                print(json.dumps(measure(subjects, rate, rows, args)), flush=True)
    finally:
        for subject in subjects.values():
            subject.engine.close()


if __name__ == "__main__":
    main()
