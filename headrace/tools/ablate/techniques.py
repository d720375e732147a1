"""The techniques that can be switched, each with the load on which its effect shows."""

from dataclasses import dataclass, field

from headrace.base.errors import RequestError
from headrace.tools.bench.datasets.choose import DatasetChoice
from headrace.tools.bench.run import Plan

OUTPUT, TTFT, TPOT, ITL = "output (tok/s)", "TTFT p50 (ms)", "TPOT p50 (ms)", "ITL p99 (ms)"
"""Titles of figures in `tools/bench/compare`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """What is switched, and what shows it."""

    name: str
    attacks: str
    """The bottleneck."""
    plan: Plan
    figure: str
    """The figure it is for."""
    off: tuple[str, ...]
    """Flags of `headrace serve` without it."""
    on: tuple[str, ...] = ()
    """Flags with it, besides the defaults."""
    load: str = field(default="")
    """The load in words."""


TECHNIQUES = (
    Technique(
        name="batching",
        attacks="memory traffic of decode",
        plan=Plan(dataset=DatasetChoice(num_talks=32, input_tokens=64, output_tokens=64), users=16),
        figure=OUTPUT,
        off=("--max-num-seqs", "1"),
        load="16 users, 64 tokens in, 64 out",
    ),
    Technique(
        name="continuous batching",
        attacks="slots that stand idle (against static batches)",
        plan=Plan(
            dataset=DatasetChoice(num_talks=48, input_tokens=64, output_tokens=64, spread=0.8), users=16
        ),
        figure=OUTPUT,
        off=("--policy", "static", "--max-num-seqs", "16"),
        on=("--max-num-seqs", "16"),
        load="16 users, answers of uneven length",
    ),
    Technique(
        name="chunked prefill",
        attacks="prompts that hold up the answers of others",
        plan=Plan(
            dataset=DatasetChoice(
                name="long-context", num_talks=16, input_tokens=1200, output_tokens=64, spread=0.5
            ),
            users=4,
        ),
        figure=ITL,
        off=("--no-enable-chunked-prefill",),
        load="4 users, about 1,200 tokens in, 64 out",
    ),
    Technique(
        name="prefix cache",
        attacks="prefill of what was computed before",
        plan=Plan(
            dataset=DatasetChoice(name="shared-prefix", num_talks=32, input_tokens=48, output_tokens=48),
            users=8,
        ),
        figure=TTFT,
        off=("--no-enable-prefix-caching",),
        load="8 users, 1,024 tokens in common",
    ),
    Technique(
        name="int16 keys and values",
        attacks="arithmetic of attention in prefill",
        plan=Plan(
            dataset=DatasetChoice(name="long-context", num_talks=3, input_tokens=3000, output_tokens=16),
            users=1,
        ),
        figure=TTFT,
        off=("--kv-cache-dtype", "f16"),
        load="1 user, about 3,000 tokens in",
    ),
    Technique(
        name="step program",
        attacks="overhead and memory traffic between operations",
        plan=Plan(dataset=DatasetChoice(num_talks=4, input_tokens=64, output_tokens=96), users=1),
        figure=TPOT,
        off=("--no-graphs",),
        load="1 user, 64 tokens in, 96 out",
    ),
    Technique(
        name="speculation",
        attacks="memory traffic of decode",
        plan=Plan(
            dataset=DatasetChoice(name="code-edit", num_talks=4, input_tokens=300, output_tokens=160), users=1
        ),
        figure=TPOT,
        off=("--speculate", "off"),
        on=("--speculate", "auto"),
        load="1 user, answers that repeat their prompt",
    ),
)


def chosen(names: tuple[str, ...]) -> tuple[Technique, ...]:
    """Those with these names, in the table's order; all for none.

    Raises:
        RequestError: there is no such technique.
    """
    known = [technique.name for technique in TECHNIQUES]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestError(f"no technique {unknown[0]!r}; known: {', '.join(known)}", param="only")
    return tuple(t for t in TECHNIQUES if not names or t.name in names)
