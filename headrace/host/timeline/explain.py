"""A timeline in one sentence: the largest cause, and what would have helped by how much."""

from collections.abc import Callable

from headrace.base.metrics.timeline import Part, PartName, PrefixResult, Timeline
from headrace.host.timeline.times import OTHERS, RECOMPUTING, WAITING

_QUEUE = {
    "slots": ("for a slot", "more slots (schedule.max_num_seqs)"),
    "blocks": ("for KV blocks", "a larger KV pool (kv.pool_bytes), or kv.dtype int8,"),
    "token_budget": (
        "for room in steps",
        "a larger step (schedule.max_num_batched_tokens, schedule.prefill_step_ms)",
    ),
    "step": ("for the step under way when it came", "shorter steps (schedule.prefill_step_ms)"),
    "leader": ("for the prompt that it shares with its first choice", "a shorter prompt, or a cached one,"),
    "policy_window": ("for its batch to begin", "schedule.policy continuous"),
    "tenant_limit": ("for its tenant's other requests", "a higher max_running or kv_share of its key"),
    "tokens_per_minute": ("as background for its key's tokens a minute", "a higher tokens_per_minute"),
    "grammar": ("for its grammar to be compiled", "a grammar used before, or a simpler one,"),
    "priority": (
        "behind requests that came later and went before it",
        "a better priority, of it (priority) or of its key,",
    ),
    "beams": ("for the other beams of its search", "a narrower search"),
}
_MISSES = {
    "no_common_prefix": "no earlier prompt of its key began like it",
    "shorter_than_block": "what it shares with earlier prompts of its key is shorter than a block",
    "evicted": "its prefix had been evicted from the cache",
    "other_adapter": "its prefix was cached for another adapter",
    "other_salt": "its prefix was cached under another salt",
    "other_kv_domain": "its prefix was cached for another class of lengths",
    "switched_off": "the prefix cache is switched off (kv.prefix_cache)",
    "prompt_logprobs": "prompt_logprobs have it computed",
    "hit": "the rest was new",
    "leader": "the rest was cached",
}


def explain(timeline: Timeline) -> str:
    """The sentence."""
    spent = [part for part in timeline.parts if part.seconds > 0.0]
    if not spent or timeline.e2e_s <= 0.0:
        return "It took no time that could be measured."
    largest = max(spent, key=lambda part: part.seconds)
    share = min(100.0, 100.0 * largest.seconds / timeline.e2e_s)
    tense = "It took" if timeline.is_finished else "So far it has taken"
    begin = f"{tense} {time_text(timeline.e2e_s)}, of which {time_text(largest.seconds)} ({share:.0f} %)"
    return f"{begin} {_CAUSES[largest.name](timeline, largest)}."


def _saved(what: str, seconds: float) -> str:
    return f"{what} would have saved up to {time_text(seconds)}"


def _queue(timeline: Timeline, part: Part) -> str:
    del timeline
    what, remedy = _QUEUE.get(part.reason, (f"({part.reason})", "less load"))
    return f"it waited {what}; {_saved(remedy, part.seconds)}"


def _prefill(timeline: Timeline, part: Part) -> str:
    prefix = timeline.prefix
    if prefix is None:
        return f"computed its prompt; {_saved('a cached prefix', part.seconds)}"
    computed = prefix.prompt_tokens - prefix.cached_tokens
    miss = _MISSES.get(prefix.outcome, prefix.outcome)
    if prefix.evicted_s is not None:
        miss += f" {time_text(prefix.evicted_s)} before"
    if prefix.differs_at is not None and prefix.outcome in {"no_common_prefix", "shorter_than_block", "hit"}:
        miss = f"it differs from the cached one that is most like it at token {prefix.differs_at}"
        miss += _words(prefix)
    done = f"computed {computed} of {prefix.prompt_tokens} prompt tokens ({miss})"
    return f"{done}; {_saved('a cached prefix', part.seconds)}"


def _words(prefix: PrefixResult) -> str:
    """What stands there, where that is known as text."""
    if prefix.differs is None or prefix.differs.texts is None:
        return ""
    before, own, cached = prefix.differs.texts
    return f": after {before!r} it goes on with {own!r}, not with {cached!r}"


def _decode(timeline: Timeline, part: Part) -> str:
    return f"{_drew(timeline)}; {_saved('an answer half as long', part.seconds / 2)}"


def _verify(timeline: Timeline, part: Part) -> str:
    """A wrong draft takes as much of its step as a right one, and brings no token."""
    checked, right = timeline.drafts
    drew = f"{_drew(timeline)}, in steps that checked drafts, of which {right} of {checked} were right"
    if right >= checked:
        return f"{drew}; {_saved('an answer half as long', part.seconds / 2)}"
    return f"{drew}; {_saved('drafts that are all right', part.seconds * (checked - right) / checked)}"


def _draft(timeline: Timeline, part: Part) -> str:
    del timeline
    whose = "for others beside it" if part.reason == OTHERS else "for it"
    return f"drafts were made {whose}; {_saved('a cheaper speculate.method, or none,', part.seconds)}"


def _drew(timeline: Timeline) -> str:
    """The first token comes with the prompt: the others share the steps with drafts and those without."""
    later = timeline.output_tokens - 1
    drew = f"drew its {timeline.output_tokens} tokens"
    if later < 1:
        return drew
    seconds = timeline.seconds_of(PartName.DECODE) + timeline.seconds_of(PartName.VERIFY)
    return f"{drew}, {time_text(seconds / later)} for each after the first"


def _others(timeline: Timeline, part: Part) -> str:
    names = ", ".join(other.request_id for other in timeline.others) or part.reason or "others"
    remedy = "smaller chunks of prompts (schedule.prefill_step_ms)"
    return f"computed prompts of others ({names}) beside it; {_saved(remedy, part.seconds)}"


def _preempted(timeline: Timeline, part: Part) -> str:
    did = {WAITING: "it waited for blocks that it had lost", RECOMPUTING: "computed tokens again"}
    times = f"preempted {timeline.num_preempted} times"
    remedy = _saved("a larger KV pool (kv.pool_bytes) or fewer slots", part.seconds)
    return f"{did.get(part.reason, 'it was out')} ({times}); {remedy}"


def _host(timeline: Timeline, part: Part) -> str:
    del timeline
    return f"the engine planned and kept its books; {_saved('fewer, larger steps', part.seconds)}"


def _stream(timeline: Timeline, part: Part) -> str:
    del timeline
    return f"its answer was on the way to the client; {_saved('a client that reads faster', part.seconds)}"


def _tokenize(timeline: Timeline, part: Part) -> str:
    del timeline
    return f"its text became tokens; {_saved('a prompt of token ids', part.seconds)}"


def _lookup(timeline: Timeline, part: Part) -> str:
    del timeline
    return f"its prefix was looked for; {_saved('kv.prefix_cache off', part.seconds)}"


_CAUSES: dict[PartName, Callable[[Timeline, Part], str]] = {
    PartName.TOKENIZE: _tokenize,
    PartName.QUEUE: _queue,
    PartName.PREFIX_LOOKUP: _lookup,
    PartName.PREFILL: _prefill,
    PartName.DECODE: _decode,
    PartName.VERIFY: _verify,
    PartName.DRAFT: _draft,
    PartName.OTHERS_PREFILL: _others,
    PartName.PREEMPTED: _preempted,
    PartName.HOST: _host,
    PartName.STREAM_OUT: _stream,
}


def time_text(seconds: float) -> str:
    """Seconds as people read them: of a second or more in s, below in ms."""
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1000 * seconds:.3g} ms"
