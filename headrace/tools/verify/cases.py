"""Ways of running requests that must not change a bit of any answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import ConfigError
from headrace.compute.ops.bind import available_isas
from headrace.engine.drafts.wish import offered
from headrace.engine.resolve import Resolved

Overrides = Mapping[str, Mapping[str, Any]]
"""Section -> setting -> value."""
SPECULATED = "ngram"
"""The method that is verified where none is named: it suits every model."""
DEPTH = 4
"""Drafts of every row where no depth is named: whether they pay must not decide whether any is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run of a case showed, to tell whether it did what it is there for."""

    counters: Mapping[str, float]
    prompt_tokens: Sequence[int]
    """Lengths of the prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way of running.

    `exercise` says in words what the run did of what the case is about; empty: it did not happen, so nothing
    was proved.
    """

    name: str
    about: str
    overrides: Overrides
    exercise: Callable[[Seen], str]
    is_alone: bool = False
    """One request after the other, else all at once."""
    rounds: int = 1
    """Runs of all prompts, of which the last is compared."""


def cases(
    resolved: Resolved, lengths: Sequence[int], max_tokens: int, methods: Sequence[str] = ()
) -> tuple[Case, ...]:
    """The cases for these settings.

    Args:
        resolved: the settings that answers are given with.
        lengths: tokens of the prompts.
        max_tokens: most tokens of an answer.
        methods: of speculation, from `drafted`; none: the one that suits every model.
    """
    off: Overrides = {"kv": {"prefix_cache": False}}
    found = [
        Case(
            name="again",
            about="the same once more, alone",
            overrides=off,
            is_alone=True,
            exercise=lambda seen: f"{len(seen.prompt_tokens)} requests",
        ),
        Case(
            name="batch",
            about="all together",
            overrides=off,
            exercise=_rows,
        ),
        _chunked(resolved),
        Case(
            name="cache",
            about="prompts from the prefix cache",
            overrides={"kv": {"prefix_cache": True}},
            rounds=2,
            exercise=lambda seen: _count(seen, "cached_prompt_tokens", "tokens from the cache"),
        ),
        _preempted(resolved, lengths, max_tokens),
        _threads(resolved),
        Case(
            name="unfused",
            about="operation by operation instead of the fused program",
            overrides={**off, "device": {"graphs": not resolved.config.device.graphs}},
            exercise=lambda seen: (
                f"{seen.counters['steps']:.0f} steps" if resolved.backend == "native" else ""
            ),
        ),
    ]
    return (*found, *_isas(resolved), *_speculated(methods))


def _rows(seen: Seen) -> str:
    steps, rows = seen.counters["steps"], seen.counters["slot_steps"]
    return f"{rows / steps:.1f} rows a step" if rows > steps else ""


def _count(seen: Seen, counter: str, what: str) -> str:
    value = seen.counters.get(counter, 0)
    return f"{value:.0f} {what}" if value else ""


def _chunked(resolved: Resolved) -> Case:
    seqs = min(8, resolved.max_num_seqs)
    budget = max(seqs, 16)
    return Case(
        name="chunks",
        about=f"prompts in pieces of at most {budget} tokens",
        overrides={
            "kv": {"prefix_cache": False},
            "schedule": {"max_num_seqs": seqs, "max_num_batched_tokens": budget, "chunked_prefill": True},
        },
        exercise=lambda seen: _cut(seen, budget),
    )


def _cut(seen: Seen, budget: int) -> str:
    count = sum(length > budget for length in seen.prompt_tokens)
    return f"{count} prompts cut" if count else ""


def _preempted(resolved: Resolved, lengths: Sequence[int], max_tokens: int) -> Case:
    """A pool that holds everybody when they are let in (prompt and a block), but not when they grow."""
    block = resolved.config.kv.block_size
    longest = -(-(max(lengths) + max_tokens) // block) + 1
    everybody = sum(-(-(length + block) // block) for length in lengths[: resolved.max_num_seqs])
    return Case(
        name="preempted",
        about="a KV pool so small that requests give way and are computed again",
        overrides={
            "kv": {"prefix_cache": False, "num_blocks": max(longest, everybody)},
            "model": {"max_model_len": min(resolved.max_model_len, (longest - 1) * block)},
        },
        exercise=lambda seen: _count(seen, "preemptions", "preemptions"),
    )


def _threads(resolved: Resolved) -> Case:
    other = 1 if resolved.threads > 1 else 2
    return Case(
        name="threads",
        about=f"{other} compute thread{'s' if other > 1 else ''} instead of {resolved.threads}",
        overrides={"kv": {"prefix_cache": False}, "device": {"threads": other}},
        exercise=lambda seen: _rows(seen) if resolved.backend == "native" else "",
    )


def _isas(resolved: Resolved) -> list[Case]:
    """The other instruction sets, but the portable one, which is slow."""
    others = [isa for isa in available_isas() if isa not in {resolved.isa, "portable"}]
    return [
        Case(
            name=f"isa {isa}",
            about=f"kernels of {isa} instead of {resolved.isa}",
            overrides={"kv": {"prefix_cache": False}, "device": {"isa": isa}},
            exercise=_rows,
        )
        for isa in others
        if resolved.backend == "native"
    ]


def drafted(asked: Sequence[str]) -> tuple[str, ...]:
    """Methods of speculation as they are run: each once, with a depth.

    Raises:
        ConfigError: there is no such method, it lacks what it is made from, or it drafts nothing.
    """
    found: dict[str, None] = {}
    for text in asked:
        wish = offered(text)
        if not wish.is_on:
            raise ConfigError(
                f"--speculate {text} drafts nothing, so there is nothing to verify; leave it out, or name "
                "auto, ngram, suffix, draft=MODEL, early-exit=N, medusa=PATH or eagle=PATH",
                param="speculate",
            )
        found[text if wish.depth is not None else f"{text},depth={DEPTH}"] = None
    return tuple(found)


def _speculated(methods: Sequence[str]) -> list[Case]:
    named = {f"speculated {method}": method for method in methods}
    return [
        Case(
            name=name,
            about="guesses of the next tokens, checked several in a step",
            overrides={"kv": {"prefix_cache": False}, "speculate": {"method": method}},
            exercise=_drafts,
        )
        for name, method in (named or {"speculated": f"{SPECULATED},depth={DEPTH}"}).items()
    ]


def _drafts(seen: Seen) -> str:
    checked, accepted = (seen.counters.get(f"drafts_{what}", 0) for what in ("checked", "accepted"))
    return f"{checked:.0f} drafts checked, {accepted:.0f} accepted" if checked else ""
