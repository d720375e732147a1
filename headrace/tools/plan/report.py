"""What `headrace plan` prints: plain data, and tables."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from headrace.base.metrics import Latency, Slo, goodput, percentile, queue_s, throughput
from headrace.compute.device.limits import Limits
from headrace.tools.plan.simulate import Lived, Simulated
from headrace.tools.plan.sizes import Sizes
from headrace.tools.plan.speeds import Speeds

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPTS = (128, 512, 2048, 8192)
PERCENTILES = (50, 95, 99)
SERVED_SHARE = 0.9
"""Of the requests asked for; engines that serve fewer fall behind."""


class Table(NamedTuple):
    """A header, the title in its first cell, and rows."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def memory_of(sizes: Sizes, block_size: int) -> dict[str, Any]:
    """Bytes by part, and what fits; what drafts is counted in the parts and told apart where there is any."""
    beside = sizes.beside
    drafting = {
        "drafting_weights_bytes": beside.weight_bytes,
        "drafting_kv_bytes_per_token": -(-beside.block_bytes // block_size),
        "drafting_step_bytes": beside.step_bytes,
    }
    return {
        "weights_bytes": sizes.weight_bytes,
        "kv_bytes_per_token": sizes.kv_token_bytes,
        "kv_pool_bytes": sizes.kv_pool_bytes,
        "activation_bytes": sizes.activation_bytes,
        "process_bytes": sizes.process_bytes,
        "total_bytes": sizes.total_bytes,
        "resident_bytes": sizes.resident_bytes,
        "available_bytes": sizes.available_bytes,
        **{name: value for name, value in drafting.items() if value},
        "pool_tokens": sizes.pool_tokens,
        "largest_context_tokens": sizes.max_model_len,
        "sequences": [{"context_tokens": c, "sequences": n} for c, n in sizes.sequences],
    }


def machine_of(limits: Limits) -> dict[str, Any]:
    """The limits that the prediction rests on."""
    return {
        "threads": limits.threads,
        "read_bytes_per_s": limits.read_bytes_s,
        "float32_operations_per_s": limits.fma_ops_s,
        "bfloat16_operations_per_s": limits.pair_ops_s,
        "int8_operations_per_s": limits.int8_ops_s,
        "int16_operations_per_s": limits.int16_ops_s,
        "source": limits.source,
    }


def speed_of(
    speeds: Speeds, sizes: Sizes, max_seqs: int, context: int, prompts: Sequence[int]
) -> dict[str, Any]:
    """TTFT by prompt, and TPOT and throughput by sequences that decode together behind `context` tokens."""
    most = max(1, min(max_seqs, sizes.pool_tokens // context))
    batches = sorted({b for b in BATCHES if b <= most} | {most})
    decode: list[dict[str, Any]] = []
    for batch in batches:
        tpot_s = speeds.tpot_s(batch, context)
        decode.append(
            {
                "sequences": batch,
                "context_tokens": context,
                "tpot_ms": 1e3 * tpot_s,
                "tokens_per_s": batch / tpot_s,
            }
        )
    prefill: list[dict[str, Any]] = []
    for tokens in prompts:
        if tokens < sizes.max_model_len:
            ttft_s = speeds.ttft_s(tokens)
            prefill.append(
                {"prompt_tokens": tokens, "ttft_ms": 1e3 * ttft_s, "tokens_per_s": tokens / ttft_s}
            )
    return {"prefill": prefill, "decode": decode}


def traffic_of(found: Simulated, slo: Slo) -> dict[str, Any]:
    """Figures of simulated traffic; `slo` bounds a good request."""
    done = [life for life in found.lives if not life.is_late]
    latencies = [_latency(life) for life in done]
    asked = len(found.lives) + found.refused
    seconds = found.seconds
    figures: dict[str, Any] = {
        "requests": asked,
        "finished": len(done),
        "refused": asked - len(done),
        "seconds": seconds,
        "requests_per_s": throughput(len(done), seconds),
        "goodput_requests_per_s": goodput(latencies, slo, seconds),
        "good_share": sum(map(slo.is_met, latencies)) / max(1, asked),
        "output_tokens_per_s": throughput(sum(life.output_tokens for life in done), seconds),
        "prompt_tokens_per_s": throughput(sum(life.prompt_tokens for life in done), seconds),
        "cached_tokens": sum(life.cached_tokens for life in done),
        "preemptions": sum(life.num_preempted for life in done),
        "busy_share": throughput(sum(found.busy_s) / len(found.busy_s), seconds),
    }
    waits = [queue_s(life.timing.arrival_s, life.timing.first_scheduled_s) for life in done]
    figures["ttft_ms"] = _spread(one.ttft_s for one in latencies)
    figures["tpot_ms"] = _spread(one.tpot_s for one in latencies if one.tpot_s is not None)
    figures["e2e_ms"] = _spread(one.e2el_s for one in latencies)
    figures["queue_ms"] = _spread(waits)
    return figures


def saturation(found: Simulated, rate: float | None) -> str | None:
    """A line when more is asked than is served; None: engines keep up, or users wait for answers."""
    done = [life.timing for life in found.lives if not life.is_late]
    if rate is None or len(done) < 2:
        return None
    arrivals = [life.timing.arrival_s for life in found.lives]
    asked = throughput(len(arrivals) + found.refused, max(arrivals) - min(arrivals))
    last = max(done, key=lambda timing: timing.finished_s)
    own_s = last.finished_s - last.first_scheduled_s  # passes after the last arrival without any backlog
    if throughput(len(done), found.seconds - own_s) >= SERVED_SHARE * asked:
        return None
    return f"saturated: {rate:g} requests/s asked, {throughput(len(done), found.seconds):.3g} served"


def _latency(life: Lived) -> Latency:
    t = life.timing
    return Latency.of(t.arrival_s, (t.first_token_s, t.finished_s), life.output_tokens)


def _spread(seconds: Iterable[float]) -> dict[str, float]:
    """Percentiles in milliseconds; none of nothing."""
    values = list(seconds)
    return {f"p{q}": 1e3 * percentile(values, q) for q in PERCENTILES} if values else {}


def tables_of(report: dict[str, Any]) -> list[Table]:
    """The report as tables: single values first, then each list with a column for each of its figures."""
    values: list[tuple[str, ...]] = []
    lists: list[Table] = []
    _collect("", report, values, lists)
    return [Table(("what", "value"), values), *lists]


def _collect(path: str, found: dict[str, Any], values: list[tuple[str, ...]], lists: list[Table]) -> None:
    for name, value in found.items():
        whole = f"{path}{name}"
        if isinstance(value, dict):
            _collect(f"{whole}.", cast("dict[str, Any]", value), values, lists)
        elif isinstance(value, list):
            items = cast("list[dict[str, Any]]", value)
            if items:
                rows = [("", *(_shown(n, v) for n, v in item.items())) for item in items]
                lists.append(Table((whole, *items[0]), rows))
        else:
            values.append((whole, _shown(name, value)))


def _shown(name: str, value: Any) -> str:
    if "bytes" in name and value >= 1 << 20:
        return f"{value / (1 << 20):,.0f} MiB"
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
