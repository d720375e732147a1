"""What is asked of a server. Shapes (tokens in, tokens out, users) are fixed; text differs with the seed.

Lengths and the order of requests are the same in every repetition, so that repetitions can be compared; text
is not, so that none profits from the prefix cache of the one before.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.client import Answer, ask
from headrace.tools.bench.text import Corpus

CORPUS = Corpus()
LENGTHS = 17
"""Seed of the lengths."""


@dataclass(frozen=True)
class Target:
    """A server; `scale` shortens a workload (1: whole)."""

    port: int
    seed: int
    scale: float = 1.0
    host: str = "127.0.0.1"

    def count(self, whole: int, least: int = 1) -> int:
        return max(least, round(whole * self.scale))


@dataclass
class Load:
    """What came back: answers by kind of request, and the seconds from first to last.

    `window`: start and end of the time in which long prompts were under way (interference).
    """

    answers: list[Answer]
    seconds: float
    window: tuple[float, float] | None = None

    def of(self, tag: str) -> list[Answer]:
        return [a for a in self.answers if a.tag == tag]


def body(messages: list[dict], max_tokens: int) -> dict:
    return {
        "model": "default",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


async def closed_loop(target: Target, bodies: list[dict], users: int) -> Load:
    """`users` clients, each sending its next request when its last one is answered."""
    todo, answers = iter(bodies), []

    async def one() -> None:
        for request in todo:
            answer = await ask(target.host, target.port, request)
            answers.append(answer)

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(users)))
    return Load(answers, time.perf_counter() - start)


async def single(target: Target) -> Load:
    """One user: 128 tokens in, 128 out; 8 requests."""
    rng = random.Random(target.seed)
    bodies = [body(user(CORPUS.prompt(rng, 128)), 128) for _ in range(target.count(8, 2))]
    return await closed_loop(target, bodies, 1)


def _long_tail(rng: random.Random) -> int:
    """Log-normal output length, clipped to 8 to 384; mean near 96."""
    return int(min(384, max(8, math.exp(rng.gauss(4.22, 0.95)))))


async def chat16(target: Target) -> Load:
    """16 users: about 256 tokens in, about 96 out; 32 requests."""
    rng, lengths = random.Random(target.seed), random.Random(LENGTHS)
    bodies = [
        body(
            user(CORPUS.prompt(rng, int(min(512, max(64, lengths.gauss(256, 64)))))),
            _long_tail(lengths),
        )
        for _ in range(target.count(32, 16))
    ]
    return await closed_loop(target, bodies, 16)


async def shared_prefix(target: Target) -> Load:
    """16 users who share a system prompt of 1,024 tokens: 48 more in, 48 out; 32 requests."""
    rng = random.Random(target.seed)
    system = [{"role": "system", "content": CORPUS.prompt(rng, 1024)}]
    bodies = [body(system + user(CORPUS.prompt(rng, 48)), 48) for _ in range(target.count(32, 16))]
    return await closed_loop(target, bodies, 16)


async def multiturn(target: Target, turns: int = 5) -> Load:
    """8 users talk for 5 turns: 160 tokens in, then 48 more a turn on top of the history; 64 out."""
    rng = random.Random(target.seed)
    talks = [
        [CORPUS.prompt(rng, 160), *(CORPUS.cut(rng, 48) for _ in range(turns - 1))]
        for _ in range(target.count(8, 4))
    ]

    async def talk(questions: list[str]) -> list[Answer]:
        history, answers = [], []
        for turn, question in enumerate(questions):
            history = history + user(question)
            answer = await ask(target.host, target.port, body(history, 64))
            answer.tag = f"turn{turn + 1}"
            answers.append(answer)
            if answer.error:
                break
            history = [*history, {"role": "assistant", "content": answer.text}]
        return answers

    start = time.perf_counter()
    answers = await asyncio.gather(*(talk(t) for t in talks))
    return Load([a for each in answers for a in each], time.perf_counter() - start)


async def interference(target: Target) -> Load:
    """8 users decode (32 in, 192 out, again and again); 3 prompts of 3,000 tokens come 2 s apart, 16 out."""
    rng = random.Random(target.seed)
    longs = [CORPUS.prompt(rng, 3000) for _ in range(target.count(3))]
    ended, answers = asyncio.Event(), []

    async def decoder() -> None:
        while not ended.is_set():
            answer = await ask(target.host, target.port, body(user(CORPUS.prompt(rng, 32)), 192))
            answer.tag = "decode"
            answers.append(answer)
            if answer.error:
                return

    async def intruder(number: int) -> Answer:
        await asyncio.sleep(4.0 + 2.0 * number)
        answer = await ask(target.host, target.port, body(user(longs[number]), 16))
        answer.tag = "long"
        answers.append(answer)
        return answer

    start = time.perf_counter()
    decoders = [asyncio.create_task(decoder()) for _ in range(8)]
    came = await asyncio.gather(*(intruder(i) for i in range(len(longs))))
    ended.set()
    await asyncio.gather(*decoders)
    window = (min(a.start for a in came), max(a.end for a in came))
    return Load(answers, time.perf_counter() - start, window)


Workload = Callable[[Target], Awaitable[Load]]
WORKLOADS: dict[str, Workload] = {
    "single": single,
    "chat16": chat16,
    "shared_prefix": shared_prefix,
    "multiturn": multiturn,
    "interference": interference,
}


async def warm_up(port: int) -> None:
    """A short and a long request: first-use costs of a server are not measured."""
    rng = random.Random(1)
    for tokens in (64, 512):
        answer = await ask("127.0.0.1", port, body(user(CORPUS.prompt(rng, tokens)), 16))
        if answer.error:
            raise RuntimeError(f"the server on port {port} does not answer: {answer.error}")
