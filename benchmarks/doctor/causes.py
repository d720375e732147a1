"""What is planted: the server's flags, and the load that makes the cause hold it up.

Lengths are those of a machine of two cores; where a machine is faster, more users make the same cause.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.doctor.wires import Body, Site, arriving, closed, reading_late, sending_late
from headrace.tools.bench.text import Corpus

CORPUS = Corpus()
SMALL = "smollm2:135m"
LARGE = "qwen2.5-coder:0.5b"
TINY = "tiny"
"""One thin layer with made-up weights and no tokenizer: a step is bookkeeping."""

Load = Callable[[Site], Awaitable[None]]


@dataclass(frozen=True)
class Cause:
    """One bottleneck and how it is planted.

    `loads`: runs take them in turn. `verdicts`: what the doctor must name.
    """

    name: str
    loads: tuple[Load, ...]
    flags: tuple[str, ...] = ()
    model: str = SMALL
    settle_s: float = 1.5
    """Seconds of load before a window."""
    burners: int = 0
    """Other processes that compute all the time."""
    verdicts: tuple[str, ...] = field(default=())

    @property
    def right(self) -> tuple[str, ...]:
        return self.verdicts or (self.name,)


def text(tokens: int, most: int, **more: Any) -> Body:
    """Requests of about so many tokens, none like another."""

    def body(rng: random.Random) -> dict[str, Any]:
        size = int(tokens * rng.uniform(0.9, 1.1))
        return {"prompt": CORPUS.prompt(rng, size), "max_tokens": most, **more}

    return body


def ids(tokens: int, most: int) -> Body:
    """Requests of so many token ids, for a model without a tokenizer."""

    def body(rng: random.Random) -> dict[str, Any]:
        return {"prompt": [rng.randrange(3, 250) for _ in range(tokens)], "max_tokens": most}

    return body


def schema(names: int, depth: int) -> Body:
    """Requests whose schema nobody sent before: so many names of fields, and alternatives of them."""

    def one(rng: random.Random, level: int) -> dict[str, Any]:
        if level == 0:
            return {"enum": [f"{rng.randrange(1 << 32):08x}-{i}" for i in range(names)]}
        fields = {f"{rng.randrange(1 << 32):08x}": one(rng, level - 1) for _ in range(names)}
        return {"type": "object", "properties": fields, "additionalProperties": False}

    def body(rng: random.Random) -> dict[str, Any]:
        return {
            "prompt": "Answer in JSON.",
            "max_tokens": 8,
            "ignore_eos": False,
            "structured_outputs": {"json": one(rng, depth)},
        }

    return body


async def _long_beside_decoding(site: Site) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(closed(site, 6, text(32, 256)))
        group.create_task(arriving(site, 0.4, text(3000, 4)))


async def _mixed(site: Site) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(arriving(site, 1.5, text(120, 48)))
        group.create_task(arriving(site, 0.5, text(300, 24)))


async def _nothing(site: Site) -> None:
    await asyncio.Event().wait()


async def _little(site: Site) -> None:
    await arriving(site, 0.5, text(24, 4))


CAUSES = {
    cause.name: cause
    for cause in (
        Cause("compute", (lambda site: closed(site, 8, text(1500, 4)),)),
        Cause(
            "memory bandwidth",
            (lambda site: closed(site, 1, text(32, 256)), lambda site: closed(site, 2, text(32, 256))),
            model=LARGE,
        ),
        Cause(
            "KV capacity",
            (lambda site: closed(site, 12, text(60, 200)),),
            ("--num-kv-blocks", "40", "--max-model-len", "600"),
        ),
        Cause(
            "queue/admission",
            (lambda site: closed(site, 12, text(32, 96)),),
            ("--max-num-seqs", "2"),
        ),
        Cause(
            "host overhead",
            (lambda site: closed(site, 16, ids(16, 512)),),
            ("--load-format", "dummy"),
            model=TINY,
        ),
        Cause(
            "tokenization/grammar",
            (
                lambda site: closed(site, 8, text(100_000, 1, truncate_prompt_tokens=1)),
                lambda site: closed(site, 6, schema(12, 2)),
            ),
        ),
        Cause(
            "network/client",
            settle_s=4.0,
            loads=(
                lambda site: reading_late(site, 6, 8192.0, text(32, 600, logprobs=5)),
                lambda site: sending_late(site, 6, 256.0, text(300, 8)),
            ),
        ),
        Cause("prefill interference", (_long_beside_decoding,)),
        Cause(
            "cores taken",
            (lambda site: closed(site, 1, text(32, 256)), lambda site: closed(site, 8, text(1500, 4))),
            burners=4,
        ),
        Cause("idle", (_nothing, _little)),
        Cause("healthy", (_mixed,), verdicts=("healthy", "idle")),
    )
}
