"""What a lookup takes to draft: `python -m benchmarks.speculation.lookups [--tokens 20000]`.

Each token that comes is followed by an ask, as in a step. Texts: random tokens of few, of some and of many
kinds, a passage that repeats itself with changes, and one token over and over, where all places match at
length, which costs most. One line per proposer and text: microseconds of an ask (median, 99 of 100, most),
and milliseconds of the first one, which takes the whole text in. `--remembered N`: the same with so many
tokens of earlier answers to draft from, where a proposer can; they are pieces of the text itself.
"""

import argparse
import time
from collections.abc import Callable
from random import Random
from statistics import median

from benchmarks.figures import percentile
from headrace.compute.spec.proposer import PROPOSERS, Ask, Owner, Proposer, Remembers

DEPTH = 10
"""Drafts that an ask wants: as many as a row checks at most where nothing else is asked for."""
SLOT = 0
ANSWER = 450
"""Tokens of an earlier answer."""
UNUSED = 10**7
"""Begins an answer with a token of its own: one that is known already is not kept again."""


def changing(rng: Random, count: int) -> list[int]:
    """A passage of 400 tokens, said again and again with a tenth of its tokens changed."""
    passage = [rng.randrange(50_000) for _ in range(400)]
    return [
        rng.randrange(50_000) if rng.random() < 0.1 else passage[at % len(passage)] for at in range(count)
    ]


TEXTS: dict[str, Callable[[Random, int], list[int]]] = {
    "3 kinds": lambda rng, count: [rng.randrange(3) for _ in range(count)],
    "200 kinds": lambda rng, count: [rng.randrange(200) for _ in range(count)],
    "1,000,000 kinds": lambda rng, count: [rng.randrange(10**6) for _ in range(count)],
    "repeats with changes": changing,
    "one token": lambda _, count: [7] * count,
}


def measured(
    make: Callable[[], Proposer], text: list[int], asks: int, remembered: int
) -> tuple[float, list[float]]:
    """Seconds of the first ask, at `len(text) - asks` tokens, and of those after each token that follows."""
    proposer = make()
    owner = Owner("", "")
    if remembered and isinstance(proposer, Remembers):
        proposer.remember(remembered + 1000)
        proposer.begin(SLOT)
        proposer.belong(SLOT, owner, 0)
        for start in range(0, remembered, ANSWER):
            at = start % (len(text) - ANSWER)
            proposer.keep(SLOT, [UNUSED + start, *text[at : at + ANSWER]])
        proposer.end(SLOT)
    proposer.begin(SLOT)
    if isinstance(proposer, Remembers):
        proposer.belong(SLOT, owner, len(text) - asks)
    ids = text[:-asks]
    first_s = _ask(proposer, ids)
    found: list[float] = []
    for token in text[-asks:]:
        ids.append(token)
        found.append(_ask(proposer, ids))
    return first_s, found


def _ask(proposer: Proposer, ids: list[int]) -> float:
    began = time.perf_counter()
    proposer.propose([Ask(SLOT, ids, DEPTH)])
    return time.perf_counter() - began


def main() -> None:
    """Measure all, print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=20_000, help="of context")
    parser.add_argument("--asks", type=int, default=2000)
    parser.add_argument("--remembered", type=int, default=0, help="tokens of earlier answers")
    args = parser.parse_args()
    print(f"{'':8} {'text':22} {'median':>8} {'99 %':>8} {'most':>8} us {'first':>8} ms")
    for name in PROPOSERS.names():
        for text, make_text in TEXTS.items():
            ids = make_text(Random(1), args.tokens + args.asks)
            first_s, found = measured(PROPOSERS.get(name), ids, args.asks, args.remembered)
            figures = (1e6 * n for n in (median(found), percentile(found, 0.99), max(found)))
            print(
                f"{name:8} {text:22} " + " ".join(f"{n:8.1f}" for n in figures) + f"    {1e3 * first_s:8.1f}"
            )


if __name__ == "__main__":
    main()
