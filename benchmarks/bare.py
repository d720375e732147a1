"""Headrace in process against llama-bench and llama-batched-bench: one repetition of each in turn.

prefill   new prompts of 512 and 2,048 tokens
decode    one sequence behind 0, 2,048 and 6,000 tokens, 64 tokens
batch     1 to 32 sequences with prompts of 128 tokens, own or shared, 64 tokens each
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.costs import ModelCost
from benchmarks.engine import Engine
from benchmarks.figures import Work
from benchmarks.limits import Others
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.store import Store

PROMPTS = (512, 2048)
DEPTHS = (0, 2048, 6000)
SEQUENCES = (1, 2, 4, 8, 16, 32)
BATCH_PROMPT = 128
STEPS = 64
OURS, THEIRS = "headrace", "llama.cpp"

Speeds = dict[str, float]
"""Tokens a second by cell: `prefill 512`, `decode 2048`, `own 8`, `shared 8`."""


@dataclass
class Bench:
    """One model under both engines; `peer` may be missing."""

    name: str
    path: Path
    engine: Engine
    peer: LlamaCpp | None
    prompts: tuple[int, ...] = PROMPTS
    depths: tuple[int, ...] = DEPTHS
    sequences: tuple[int, ...] = SEQUENCES
    micro_batches: dict[int, int] = field(default_factory=dict)
    """llama.cpp's -ub for each size of prompt; others take its default of 512."""


def ours(bench: Bench, part: str, pair: int) -> Speeds:
    """One repetition of a part by Headrace."""
    engine = bench.engine
    if part == "prefill":
        seed = 1000 * (pair + 1)
        return {f"prefill {n}": n / engine.prefill_s(n, seed + n) for n in bench.prompts}
    if part == "decode":
        # a prompt of one token stands for depth 0; the same prompt again is found in the prefix cache
        return {
            f"decode {d}": STEPS / engine.decode_s([engine.prompt(d, max(1, d))], STEPS) for d in bench.depths
        }
    speeds = {}
    for count in bench.sequences:
        own = [engine.prompt(7000 + i, BATCH_PROMPT) for i in range(count)]
        speeds[f"own {count}"] = count * STEPS / engine.decode_s(own, STEPS)
        shared = [engine.prompt(7000, BATCH_PROMPT)] * count
        speeds[f"shared {count}"] = count * STEPS / engine.decode_s(shared, STEPS)
    return speeds


def theirs(bench: Bench, peer: LlamaCpp, part: str) -> Speeds:
    """One repetition of a part by llama.cpp."""
    if part == "prefill":
        speeds = {}
        for n in bench.prompts:
            found = peer.bench(bench.path, prompts=(n,), micro_batch=bench.micro_batches.get(n, 512))
            speeds[f"prefill {n}"] = found[("prefill", n)]
        return speeds
    if part == "decode":
        found = peer.bench(bench.path, depths=bench.depths, generate=STEPS)
        return {f"decode {d}": found[("decode", d)] for d in bench.depths}
    speeds = {}
    for kind, shared in (("own", False), ("shared", True)):
        found = peer.batched(bench.path, bench.sequences, prompt=BATCH_PROMPT, generate=STEPS, shared=shared)
        speeds |= {f"{kind} {b}": v for b, v in found.items()}
    return speeds


def work_of(cell: str, cost: ModelCost, step_tokens: int) -> tuple[Work, float]:
    """The work behind a cell's figure, and the tokens it counts: seconds = tokens / speed."""
    kind, number = cell.split()
    n = int(number)
    if kind == "prefill":
        return cost.prefill(n, step_tokens), n
    if kind == "decode":
        return cost.decode(n + STEPS // 2), 1
    shared = BATCH_PROMPT if kind == "shared" else 0
    return cost.decode(BATCH_PROMPT + STEPS // 2, n, shared=shared), n


def measure(store: Store, bench: Bench, part: str, pair: int, note: Callable[[str], None]) -> None:
    """One pair: both engines in turn, ours first in even pairs; what the file has already is left out."""
    turns: list[tuple[str, Callable[[], Speeds]]] = [(OURS, lambda: ours(bench, part, pair))]
    if bench.peer is not None:
        peer = bench.peer
        turns.append((THEIRS, lambda: theirs(bench, peer, part)))
    for who, run in turns if pair % 2 == 0 else reversed(turns):
        keys = {"part": part, "model": bench.name, "pair": pair, "who": who}
        if store.has(**keys):
            continue
        others, began = Others(), time.perf_counter()
        speeds = run()
        seconds = time.perf_counter() - began
        cores = others.cores(seconds)
        for cell, speed in speeds.items():
            store.add({**keys, "cell": cell, "tok/s": round(speed, 2), "other cores": cores})
        shown = ", ".join(f"{cell.split()[-1]}: {v:.0f}" for cell, v in speeds.items())
        note(
            f"{bench.name} {part} pair {pair} {who}: {shown} tok/s; {seconds:.0f} s, others {cores:.2f} cores"
        )
