"""Whether answers with drafts are those without, bit for bit: random requests to a real model.

    python -m benchmarks.speculation.exact MODEL [--speculate METHOD ...] [--seconds 600] [--seed 1]

Each round asks an engine with drafts several random requests at once, from threads of their own: texts that
repeat and others, with common beginnings, several choices, seeds, stops, grammars, log-probabilities, and a
method and a depth of their own; some are left early. The engine has few blocks, so sequences are preempted,
and reuses prefixes. Then a plain engine answers each request alone. Tokens, texts, reasons and
log-probabilities are compared with `==`. When drafts are checked depends on the clock, so a seed repeats the
requests of a round, not its schedule.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from headrace.base.config import (
    DeviceConfig,
    EngineConfig,
    KVConfig,
    ModelConfig,
    ScheduleConfig,
    SpeculateConfig,
)
from headrace.base.errors import HeadraceError
from headrace.base.grammar import Grammar
from headrace.base.request import SamplingParams
from headrace.base.tasks import AUTO, Speculation
from headrace.compute.spec.proposer import PROPOSERS
from headrace.engine.llm import LLM
from headrace.engine.outputs import GenerationResult

LENGTH = 256
"""Most tokens of prompt and answer."""
BLOCK = 4
BLOCKS = 68
"""Hardly more than the longest sequence needs, and eight run."""
TEXTS = (
    "one two three four five six. one two three four five six. one two three",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return",
    "Orders: 12 apples, 7 pears, 30 plums. As JSON: [{",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "Once upon a time there was a small river that",
    "Explain in two sentences why the sky is blue.",
)
STOPS = (" the", "\n", "e", ". ", " three four", "return", ",", "a", " of", "14")
GRAMMARS = (
    Grammar.regex("[a-z ]{1,20}"),
    Grammar.choice(["yes", "no", "perhaps not"]),
    Grammar.json({"type": "array", "items": {"type": "integer"}, "maxItems": 5}),
)


@dataclass
class Tally:
    """What came of the rounds."""

    faults: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    """`rounds`, `requests`, `choices`, `tokens`, `cut`; of the engines `drafts_checked` and so on."""


@dataclass(frozen=True)
class Asked:
    """One request, when it comes, and after how many tokens its caller leaves."""

    prompt: tuple[int, ...]
    params: SamplingParams
    wait_s: float
    leaves_after: int | None

    def answer(self, llm: LLM) -> Any:
        """Ask it: a result, or tokens and log-probabilities up to where the caller left, and an error."""
        time.sleep(self.wait_s)
        if self.leaves_after is None:
            return whole(llm, self.prompt, self.params)
        tokens: list[int] = []
        logprobs: list[Any] = []
        try:
            for output in llm.stream(self.prompt, self.params):
                for choice in output.choices:
                    tokens += choice.token_ids
                    logprobs += choice.logprobs
                if len(tokens) >= self.leaves_after:
                    break
        except HeadraceError as error:
            return tokens, logprobs, _told(error)
        return tokens, logprobs, ""


def whole(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> GenerationResult | str:
    """The answer, or what went wrong with it, without the request's name."""
    try:
        return llm.generate(tuple(prompt), params, progress=False)[0]
    except HeadraceError as error:
        return _told(error)


def _told(error: HeadraceError) -> str:
    """The error without the request's name."""
    return re.sub(r"req-\d+", "req", f"{type(error).__name__}: {error}")


def config(model: str, speculate: str = "off", *, threads: int | None = None) -> EngineConfig:
    """A small engine with these drafts; `off`: one sequence at a time, nothing reused, room for all."""
    is_plain = speculate == "off"
    return EngineConfig(
        model=ModelConfig(model=model, max_model_len=LENGTH),
        device=DeviceConfig(threads=threads, weight_cache="off"),
        kv=KVConfig(prefix_cache=False) if is_plain else KVConfig(block_size=BLOCK, num_blocks=BLOCKS),
        schedule=ScheduleConfig(max_num_seqs=1 if is_plain else 8, max_num_batched_tokens=48),
        speculate=SpeculateConfig(method=speculate, memory_tokens=0 if is_plain else 2000),
    )


def wishes(offered: Speculation) -> tuple[str, ...]:
    """Methods that a request may ask for; a drafter twice, since it is chosen seldom beside a lookup."""
    names = [offered.lookup] if offered.lookup else []
    names += PROPOSERS.names() if offered.lookup == AUTO else []
    late = [offered.method] * 2 if offered.is_late else []
    both = [",".join(offered.names)] if offered.beside else []
    return (*names, *late, *both)


def random_request(rng: Random, encode: Any, vocab: int, methods: Sequence[str]) -> Asked:
    """Any mixture of options."""

    def maybe(value: Any, default: Any, chance: float = 0.25) -> Any:
        return value if rng.random() < chance else default

    prompt = list(encode(rng.choice(TEXTS)))
    prompt = prompt[: rng.randint(1, len(prompt))] if rng.random() < 0.3 else prompt
    prompt += rng.choice([[], [], prompt, list(encode(rng.choice(TEXTS)))])
    wish = maybe(rng.choice((*methods, "off")), None, 0.7)
    if wish not in (None, "off") and rng.random() < 0.6:
        wish += f",depth={rng.randint(1, 8)}"
    grammar, most = maybe(rng.choice(GRAMMARS), None, 0.12), rng.choice([1, 7, 20, 40, 60, 90])
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.3]),
        top_k=maybe(rng.randint(1, 50), 0),
        top_p=maybe(rng.uniform(0.4, 1.0), 1.0),
        min_p=maybe(rng.uniform(0.0, 0.2), 0.0),
        repetition_penalty=rng.choice([1.0, 1.0, 0.8, 1.2]),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        logit_bias=maybe(tuple((rng.randrange(vocab), rng.uniform(-20, 5)) for _ in range(3)), ()),
        bad_words=maybe((" the", "e"), ()),
        seed=rng.randrange(2**63),
        stop=maybe(tuple(rng.sample(STOPS, rng.randint(1, 2))), (), 0.4),
        include_stop_str_in_output=maybe(True, False),
        stop_token_ids=maybe((prompt[-1],), ()),
        min_tokens=maybe(rng.randint(0, min(most, 12)), 0),
        max_tokens=most,
        ignore_eos=grammar is None and maybe(True, False),
        n=rng.choice([1, 1, 1, 2, 3]),
        logprobs=rng.choice([None, 0, 3]),
        prompt_logprobs=maybe(1, None, 0.1),
        structured=grammar,
        speculate=wish,
    )
    leaves = rng.randint(1, 20) if rng.random() < 0.1 else None
    if leaves is not None:
        params = replace(params, n=1, stop=())  # so that tokens come as they are drawn
    return Asked(tuple(prompt), params, maybe(rng.uniform(0.0, 0.3), 0.0, 0.5), leaves)


def differences(asked: Asked, found: Any, want: GenerationResult | str) -> list[str]:
    """What of an answer is not that of the plain run."""
    if asked.leaves_after is not None:
        tokens, logprobs, error = found
        if isinstance(want, str):  # the plain run was not left: how many tokens came before is not known
            pairs = {"error": (error or want if len(tokens) >= asked.leaves_after else error, want)}
        else:
            (choice,) = want.choices
            least = min(asked.leaves_after, len(choice.token_ids))
            pairs = {
                "token_ids": (tokens, list(choice.token_ids)[: max(least, len(tokens))]),
                "logprobs": (logprobs, list(choice.logprobs)[: len(logprobs)]),
                "error": (error, ""),
            }
    elif isinstance(want, str):
        pairs = {"error": (found, want)}
    else:
        names = ("choices", "prompt_logprobs", "seed", "prompt_ids")
        pairs = {name: (getattr(found, name, found), getattr(want, name)) for name in names}
    return [f"{name}: {a!r:.2000}, plain {b!r:.2000}" for name, (a, b) in pairs.items() if a != b]


def run(
    model: str,
    methods: Sequence[str],
    *,
    seed: int,
    count: int = 1 << 30,
    seconds: float = 1e9,
    threads: int | None = None,
) -> Tally:
    """Rounds, an engine with each of the methods in turn, until `count` or `seconds` are over."""
    tally, began_s = Tally(), time.monotonic()
    engines: list[LLM] = []
    plain = LLM(config(model, threads=threads))
    try:
        engines = [LLM(config(model, method, threads=threads)) for method in methods]
        while tally.counts["rounds"] < count and time.monotonic() - began_s < seconds:
            number = tally.counts["rounds"]
            method, llm = (many[number % len(methods)] for many in (methods, engines))
            _round(tally, Random(f"{seed}/{number}"), llm, plain, f"{method}, round {number}")
        for method, llm in zip(methods, engines, strict=True):
            _settle(tally, method, llm)
    finally:
        for llm in (plain, *engines):
            llm.close()
    return tally


def _round(tally: Tally, rng: Random, llm: LLM, plain: LLM, name: str) -> None:
    assert plain.tokenizer is not None
    methods = wishes(Speculation.parse(llm.resolved.config.speculate.method))
    vocab = plain.tokenizer.vocab_size
    asks = [random_request(rng, plain.tokenizer.encode, vocab, methods) for _ in range(rng.randint(3, 9))]
    with ThreadPoolExecutor(len(asks)) as pool:
        found = list(pool.map(lambda asked: asked.answer(llm), asks))
    for asked, one in zip(asks, found, strict=True):
        want = whole(plain, asked.prompt, replace(asked.params, speculate=None))
        tally.counts["cut"] += asked.leaves_after is not None
        choices = () if isinstance(want, str) else want.choices
        tally.counts["choices"] += len(choices)
        tally.counts["tokens"] += sum(len(choice.token_ids) for choice in choices)
        tally.counts["stopped"] += sum(choice.finish_reason == "stop" for choice in choices)
        tally.counts["errors"] += isinstance(want, str)
        tally.faults += [f"{name}: {what}\n  {asked}" for what in differences(asked, one, want)]
    tally.counts["rounds"] += 1
    tally.counts["requests"] += len(asks)


def _settle(tally: Tally, method: str, llm: LLM) -> None:
    """Count what an engine did; nothing may be left in it."""
    stats = llm.stats()
    tally.faults += [
        f"{method}: {name} is {stats.gauges[name]} at the end"
        for name in ("running", "waiting", "blocks_held")
        if stats.gauges[name]
    ]
    for name in ("drafts_checked", "drafts_accepted", "preemptions", "cached_prompt_tokens", "draft_faults"):
        tally.counts[name] += int(stats.counters.get(name, 0))
    for name, number in stats.counters.items():
        if name.startswith("drafts_by_") and name.endswith(("_checked", "_accepted")):
            tally.counts[name] += int(number)


def main() -> None:
    """Run, print the counts and what differs; exit 1 where anything does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument(
        "--speculate", nargs="+", help="engines; default: auto beside the model itself and an exit"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=1 << 30, help="rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    methods = args.speculate or ["auto", f"auto,draft={args.model}", "auto,early-exit=4"]
    tally = run(
        args.model, methods, seed=args.seed, count=args.count, seconds=args.seconds, threads=args.threads
    )
    for name, number in tally.counts.items():
        print(f"{name:32} {number}")
    for fault in tally.faults:
        print(f"DIFFERENT {fault}")
    raise SystemExit(bool(tally.faults))


if __name__ == "__main__":
    main()
