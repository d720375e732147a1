"""What a schedule gave, held against runs of each request by itself."""

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from headrace.base.request import Request
from tests.kit.drafts import draft_with
from tests.kit.engine import VOCAB, Drive, Life, Rig, random_requests, random_shape

WISHES = (None, None, "off", "ngram", "suffix,depth=1", "auto,depth=2")
"""What requests may ask for where the engine drafts as it likes."""


def check_against_solo(
    lives: Mapping[str, Life],
    requests: Sequence[Request],
    alone: Rig,
    shape: dict,
    aborts: Container[str] = (),
) -> None:
    """Every answer is that of a solo run on `alone`; of an aborted request, its beginning.

    Where drafts are checked, chunks are cut otherwise, so an error may come after another part of a prompt.
    """
    for request in requests:
        life, want = lives[request.request_id], alone.solo(request, shape["dtype"])
        if request.request_id in aborts:
            assert life.tokens == want.tokens[: len(life.tokens)]
            assert life.logprobs == want.logprobs[: len(life.logprobs)]
        elif want.error:
            assert (life.tokens, life.logprobs, life.error) == (want.tokens, want.logprobs, want.error)
        else:
            assert life.answer == want.answer, (request, shape)


def repetitive(rng: random.Random, requests: list[Request]) -> list[Request]:
    """The same requests with prompts that repeat themselves, so that there is something to draft from."""
    made, prompt_of = [], {}
    for request in requests:
        leader = request.leader or request.request_id
        if leader not in prompt_of:
            piece = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 5))]
            prompt_of[leader] = tuple((piece * 64)[: len(request.prompt_ids)])
        made.append(replace(request, prompt_ids=prompt_of[leader]))
    return made


def check_drafts(
    subject: Rig,
    alone: Rig,
    seed: int,
    method: str,
    *,
    say=None,
    draft: Rig | None = None,
    counts=None,
    wishes=(None, None, "off"),
    tune=None,
) -> int:
    """A random schedule with drafts against solo runs without; returns how many drafts were checked.

    `draft`: the rig whose model drafts. `counts`: takes the engine's counters. `wishes`: what requests may
    ask for. `tune`: is given the engine before it runs.
    """
    rng = random.Random(seed)
    shape = random_shape(rng)
    capacity = shape["num_blocks"] * shape["block_size"]
    share = rng.choice([0.0, 0.0, 0.5])
    requests = repetitive(rng, random_requests(rng, min(capacity, 64), structured=share, most_output=24))
    wishes = WISHES if method == "auto" else wishes
    if rng.random() < 0.5:
        wish = {r.leader or r.request_id: rng.choice(wishes) for r in requests}
        requests = [
            replace(r, sampling=replace(r.sampling, speculate=wish[r.leader or r.request_id]))
            for r in requests
        ]
    depth = rng.choice(["", "", *(f",depth={k}" for k in range(1, 9))])
    core = subject.core(draft, **shape, speculate="auto" if method == "auto" else method + depth)
    if say is not None:
        draft_with(core, say)
    if tune is not None:
        tune(core)
    arrivals = {r.request_id: rng.choice([0, 0, rng.randint(0, 20)]) for r in requests}
    aborts = {r.request_id: rng.randint(0, 25) for r in requests if rng.random() < 0.1}
    lives = Drive(core).run(requests, arrivals=arrivals, aborts=aborts)
    check_against_solo(lives, requests, alone, shape, aborts)
    found = core.stats().counters
    if counts is not None:
        counts.update(found)
    return int(found.get("drafts_checked", 0))
