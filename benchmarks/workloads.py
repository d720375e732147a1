"""What is asked of a server; each returns the answers and the seconds that all of them took."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable

from client import Answer, ask
from text import Corpus

CORPUS = Corpus()
Result = tuple[list[Answer], float]


def body(model: str, prompt: str, max_tokens: int, system: str | None = None) -> dict:
    messages = [{"role": "system", "content": system}] if system else []
    return {
        "model": model,
        "messages": [*messages, {"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


async def closed_loop(host: str, port: int, bodies: list[dict], users: int) -> Result:
    """`users` clients, each sending its next request when its last one is answered."""
    todo, answers = iter(bodies), []

    async def user() -> None:
        for request in todo:
            answer = await ask(host, port, request)
            answers.append(answer)

    start = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    return answers, time.perf_counter() - start


async def single(host: str, port: int, model: str, seed: int) -> Result:
    """One user: 128 tokens in, 128 out."""
    rng = random.Random(seed)
    return await closed_loop(host, port, [body(model, CORPUS.prompt(rng, 128), 128) for _ in range(4)], 1)


async def depth(host: str, port: int, model: str, seed: int, tokens: int = 2048) -> Result:
    """One user, decode behind 2,048 tokens of context."""
    rng = random.Random(seed)
    return await closed_loop(host, port, [body(model, CORPUS.prompt(rng, tokens), 64) for _ in range(2)], 1)


async def prefill(host: str, port: int, model: str, seed: int) -> Result:
    """One user: 512 tokens in, 1 out."""
    rng = random.Random(seed)
    return await closed_loop(host, port, [body(model, CORPUS.prompt(rng, 512), 1) for _ in range(4)], 1)


def _long_tail(rng: random.Random) -> int:
    """Log-normal output length, clipped to 8 to 384; mean near 96."""
    return int(min(384, max(8, math.exp(rng.gauss(4.22, 0.95)))))


async def chat16(host: str, port: int, model: str, seed: int) -> Result:
    """16 users: about 256 tokens in, about 96 out; 32 requests."""
    rng, lengths = random.Random(seed), random.Random(17)
    bodies = [
        body(model, CORPUS.prompt(rng, int(min(512, max(64, lengths.gauss(256, 64))))), _long_tail(lengths))
        for _ in range(32)
    ]
    return await closed_loop(host, port, bodies, 16)


async def shared_prefix(host: str, port: int, model: str, seed: int) -> Result:
    """16 users who share a system prompt of 1,024 tokens: 48 more in, 48 out; 32 requests."""
    rng = random.Random(seed)
    system = CORPUS.prompt(rng, 1024)
    return await closed_loop(
        host, port, [body(model, CORPUS.prompt(rng, 48), 48, system) for _ in range(32)], 16
    )


Workload = Callable[[str, int, str, int], Awaitable[Result]]
WORKLOADS: dict[str, Workload] = {
    "single": single,
    "depth": depth,
    "prefill": prefill,
    "chat16": chat16,
    "shared_prefix": shared_prefix,
}
