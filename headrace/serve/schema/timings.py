"""Where the time of a request went, as the API tells it: timelines, and `timings` in answers.

The names in `timings` are llama-server's, times in milliseconds; the definitions are those of `base/metrics`.
"""

from collections.abc import Mapping
from typing import Any

from headrace.base.metrics import throughput, tpot_s
from headrace.base.metrics.drafts import DraftReport
from headrace.base.metrics.timeline import Differing, Timeline
from headrace.engine.outputs import Usage
from headrace.host.timeline.explain import explain


def timeline_body(timeline: Timeline) -> dict[str, Any]:
    """A timeline: its parts add up to `e2e_s`."""
    prefix = timeline.prefix
    return {
        "id": timeline.request_id,
        "object": "timeline",
        "finished": timeline.is_finished,
        "e2e_s": timeline.e2e_s,
        "parts": [{"name": p.name.value, "seconds": p.seconds, "reason": p.reason} for p in timeline.parts],
        "sentence": explain(timeline),
        "prefix": None
        if prefix is None
        else {
            "outcome": prefix.outcome,
            "prompt_tokens": prefix.prompt_tokens,
            "cached_tokens": prefix.cached_tokens,
            "differs_at": prefix.differs_at,
            "differs": _differs_body(prefix.differs),
            "evicted_s": prefix.evicted_s,
        },
        "others_prefill": [{"id": o.request_id, "seconds": o.seconds} for o in timeline.others],
        "output_tokens": timeline.output_tokens,
        "preemptions": timeline.num_preempted,
    }


def _differs_body(differs: Differing | None) -> dict[str, str] | None:
    if differs is None or differs.texts is None:
        return None
    return dict(zip(("before", "own", "cached"), differs.texts, strict=True))


def timings_body(
    timings: Mapping[str, float],
    usage: Usage,
    num_choices: int,
    timeline: Timeline | None,
    drafts: DraftReport | None = None,
) -> dict[str, Any]:
    """`timings` of an answer.

    Args:
        timings: the engine's (`RequestOutput.timings`).
        usage: of the same prompt.
        num_choices: its choices, which were drawn side by side.
        timeline: None: none was kept.
        drafts: None: there are no drafts.
    """
    prompt_s, decode_s = timings.get("prefill_s", 0.0), timings.get("decode_s", 0.0)
    computed = usage.prompt_tokens - usage.cached_tokens
    each = usage.completion_tokens // max(1, num_choices)
    token_s = tpot_s(0.0, decode_s, each)
    made: dict[str, Any] = {
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": 1000 * prompt_s / max(1, computed),
        "prompt_per_second": throughput(computed, prompt_s),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": 1000 * decode_s,
        "predicted_per_token_ms": None if token_s is None else 1000 * token_s,
        "predicted_per_second": throughput((each - 1) * num_choices, decode_s) if each > 1 else None,
        "queue_ms": 1000 * timings.get("queue_s", 0.0),
        "ttft_ms": 1000 * timings.get("ttft_s", 0.0),
    }
    if timings.get("draft_n"):
        made |= {name: int(timings[name]) for name in ("draft_n", "draft_n_accepted")}
    if drafts is not None:
        made["drafts"] = drafts.body()
    if timeline is not None:
        told = timeline_body(timeline)
        made |= {name: told[name] for name in ("e2e_s", "parts", "sentence")}
    return made
