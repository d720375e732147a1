"""What the clients send: answers of four APIs, and bodies that must be refused."""

import json
import random
from dataclasses import dataclass

from headrace.tools.bench.text import Corpus

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
PATHS = (CHAT, COMPLETION, MESSAGES, RESPONSES)
SHARES = (45, 35, 10, 10)

SHAPES: tuple[dict, ...] = (
    {},
    {},
    {},
    {"temperature": 0},
    {"n": 2},
    {"logprobs": True, "top_logprobs": 2},
    {"stop": ["the", "zzqq"]},
    {"frequency_penalty": 0.5, "top_k": 40},
    {"response_format": {"type": "json_object"}},
)
"""Variations of chats; completions have their own spelling of some."""

CANARY = {"prompt": "The river ran through the old mill and", "max_tokens": 12, "seed": 11, "logprobs": 2}
"""Its answer is the same every time, whatever runs beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. `leave_s`: seconds after which the client goes away (None: it stays)."""

    path: str
    body: bytes
    kind: str
    stream: bool = False
    choices: int = 1
    leave_s: float | None = None
    refusals: tuple[int, ...] = ()
    """Statuses of which one must come; empty: it must be answered."""


class Asks:
    """Random requests, the same for the same seed."""

    def __init__(self, seed: int, max_tokens: int = 48) -> None:
        self._rng = random.Random(seed)
        self._corpus = Corpus()
        self._max_tokens = max_tokens

    def next(self) -> Ask:
        """10 % leave, 5 % have invalid bodies, 2 % over-long prompts, 3 % are the canary."""
        draw = self._rng.random()
        if draw < 0.05:
            return self._invalid()
        if draw < 0.07:
            return self._too_long()
        if draw < 0.10:
            return canary()
        return self._good(leaves=draw < 0.20)

    def _good(self, *, leaves: bool) -> Ask:
        rng = self._rng
        path = rng.choices(PATHS, SHARES)[0]
        shape = rng.choice(SHAPES)
        tokens = rng.choice((1, *range(8, self._max_tokens)))
        body = self._body(path, self._corpus.prompt(rng, rng.choice((12, 30, 60, 120, 300))), tokens)
        if path == CHAT:
            body |= shape
        elif path == COMPLETION:
            body |= {"logprobs": 2} if "logprobs" in shape else shape
        stream = rng.random() < 0.8
        return Ask(
            path=path,
            body=json.dumps({**body, "stream": stream}).encode(),
            kind="leaves" if leaves else "stays",
            stream=stream,
            choices=body.get("n", 1),
            leave_s=rng.choice((0.002, 0.02, 0.1, 1.0, 3.0, 8.0)) if leaves else None,
        )

    def _too_long(self) -> Ask:
        rng = self._rng
        path = rng.choices(PATHS, SHARES)[0]
        text = "word " * rng.choice((9_000, 60_000))
        body = self._body(path, [7] * 9_000 if path == COMPLETION and rng.random() < 0.5 else text, 8)
        return Ask(path=path, body=json.dumps(body).encode(), kind="over-long", refusals=(400,))

    def _invalid(self) -> Ask:
        path = self._rng.choices(PATHS, SHARES)[0]
        good = self._body(path, "word", 8)
        body, refusals = self._rng.choice(broken(good))
        return Ask(path=path, body=body, kind="invalid", refusals=refusals)

    @staticmethod
    def _body(path: str, prompt: str | list[int], tokens: int) -> dict:
        if path == COMPLETION:
            return {"prompt": prompt, "max_tokens": tokens}
        if path == RESPONSES:
            return {"input": prompt, "max_output_tokens": max(16, tokens)}
        return {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens} | (
            {"model": "default"} if path == MESSAGES else {}
        )


def canary() -> Ask:
    """The request whose answer is known."""
    return Ask(path=COMPLETION, body=json.dumps(CANARY).encode(), kind="canary")


def broken(good: dict) -> list[tuple[bytes, tuple[int, ...]]]:
    """Bodies of a path that must be refused, made of a good one."""
    whole = json.dumps(good).encode()
    text = next(k for k in ("prompt", "messages", "input") if k in good)
    count = next(k for k in ("max_tokens", "max_output_tokens") if k in good)
    deep = b'{"' + text.encode() + b'": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    changed = (
        {text: None},
        {text: 7.5},
        {text: []},
        {count: "many"},
        {count: -1},
        {"temperature": "warm"},
        {"temperature": -3},
        {"no_such_field": 1},
        {"stream": "perhaps"},
    )
    return [
        (b"", (400,)),
        (whole[:-3], (400,)),
        (whole[:-1] + b"\xff}", (400,)),
        (b"[1, 2]", (400,)),
        (deep, (400,)),
        (json.dumps(good | {"model": "no-such-model"}).encode(), (404,)),
        *((json.dumps(good | change).encode(), (400, 422)) for change in changed),
    ]
