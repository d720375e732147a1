"""How far a setting moves the answers: the divergence of the next token from that of exact settings.

The texts are the load's own prompts with the answers that the exact settings give to them; both servers are
asked for the most likely tokens at every place of the same text (`prompt_logprobs`), so no difference feeds
another.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.clock import now_s
from headrace.base.errors import RequestError
from headrace.tools.bench.ask import Wish, ask
from headrace.tools.bench.datasets.talk import Talk
from headrace.tools.bench.wire import Client, CutError, RefusedError

TOP = 20
"""Tokens that a server tells at each place; the others are one sum."""
MOST_TALKS = 8
MOST_ANSWER = 128
"""Tokens of an answer."""

Place = Mapping[int, float]
"""Log-probabilities of the most likely tokens at a place, and of the one that is there."""
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Loss:
    """What a setting does to the answers; of exact settings all is as it was."""

    kl: float = 0.0
    """KL(exact || changed) in nats, the mean over places; at least, as the unlikely tokens count as one."""
    error: float = 0.0
    """Standard error of the mean."""
    same: float = 1.0
    """Share of the places with the same most likely token."""
    places: int = 0
    """None: nothing changes the answers."""

    def text(self) -> str:
        """In words."""
        if not self.places:
            return "the same"
        return (
            f"KL {self.kl:.2e} ± {self.error:.1e} nats over {self.places} tokens, "
            f"{self.same:.1%} the same most likely"
        )


EXACT = Loss()


def loss_of(exact: Sequence[Place], changed: Sequence[Place]) -> Loss:
    """The loss over all places of the same texts.

    Raises:
        RequestError: the places are not the same, or too few.
    """
    if len(exact) != len(changed) or len(exact) < 2:
        raise RequestError(
            f"the divergence needs one text twice, at least 2 tokens; got {len(exact)} and {len(changed)}"
        )
    each = [divergence(*pair) for pair in zip(exact, changed, strict=True)]
    agree = sum(_best(a) == _best(b) for a, b in zip(exact, changed, strict=True))
    error = statistics.stdev(each) / math.sqrt(len(each))
    return Loss(statistics.fmean(each), error, agree / len(each), len(each))


def divergence(exact: Place, changed: Place) -> float:
    """The least KL(exact || changed) in nats that what is told of both allows.

    A token that only `exact` tells has in `changed` at most the probability of the least of the most likely;
    what is left there is spread over these and all others as suits `exact` best.
    """
    total = 0.0
    left_p = left_q = 1.0
    alone: list[float] = []
    for token, value in exact.items():
        p = math.exp(value)
        if p == 0.0:
            continue
        if token in changed:
            total += p * (value - changed[token])
            left_p -= p
            left_q -= math.exp(changed[token])
        else:
            alone.append(p)
    most = math.exp(sorted(changed.values(), reverse=True)[:TOP][-1])
    return max(0.0, total + _spread(sorted(alone, reverse=True), max(0.0, left_p), max(left_q, 1e-9), most))


def _spread(alone: Sequence[float], left_p: float, left_q: float, most: float) -> float:
    """The least part of those that one side alone tells: `left_q` in proportion, at most `most` each."""
    total = 0.0
    for p in alone:  # the likeliest meet the bound first
        if left_p <= 0.0 or left_q * p / left_p <= most:
            break
        total += p * math.log(p / most)
        left_p, left_q = left_p - p, max(left_q - most, 1e-9)
    return total + (left_p * math.log(left_p / left_q) if left_p > 1e-9 else 0.0)


def _best(place: Place) -> int:
    return max(place, key=lambda token: (place[token], -token))


async def answered(client: Client, wish: Wish, talks: Sequence[Talk]) -> list[list[Message]]:
    """The first conversations of a load, with the answers that the server gives.

    Raises:
        RequestError: an answer failed.
    """
    found: list[list[Message]] = []
    for talk in talks[:MOST_TALKS]:
        messages: list[Message] = []
        for turn in talk.turns:
            messages += turn.messages
            body = wish.body(messages, min(turn.max_tokens, MOST_ANSWER))
            outcome = await ask(client, wish.path, body, wish.timeout_s, now_s())
            if outcome.failure is not None:
                raise RequestError(f"no answer to measure divergence on: {outcome.detail or outcome.failure}")
            messages.append({"role": "assistant", "content": outcome.text})
        found.append(messages)
    return found


async def places_of(client: Client, wish: Wish, talks: Sequence[Sequence[Message]]) -> list[Place]:
    """What the server finds likely at every place of these conversations.

    Raises:
        RequestError: it does not say.
    """
    found: list[Place] = []
    for messages in talks:
        body = {**wish.body(messages, 1), "stream": False, "prompt_logprobs": TOP}
        del body["stream_options"]
        try:
            answer: Any = await client.post(wish.path, body)
            found += [_place(entry) for entry in answer["prompt_logprobs"] if entry is not None]
        except (OSError, CutError, RefusedError, ValueError, KeyError, TypeError) as error:
            raise RequestError(f"the server tells no log-probabilities of a prompt: {error}") from error
    return found


def _place(entry: Mapping[str, Mapping[str, float]]) -> Place:
    return {int(token): float(told["logprob"]) for token, told in entry.items()}
