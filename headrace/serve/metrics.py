"""Prometheus metrics: what this process observes of requests, and the engine's own counters and gauges.

TTFT: arrival of a request to its first token. ITL: time between two outputs of one choice. E2E: arrival to
the end. Failed requests are counted by reason and stay out of the histograms.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.base.clock import now_s
from headrace.engine.outputs import EngineStats, RequestOutput

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_COUNTERS: Mapping[str, tuple[str, str]] = {
    "headrace_prompt_tokens": ("prompt_tokens", "Prompt tokens of finished prefills, cached ones included."),
    "headrace_generation_tokens": ("generated_tokens", "Tokens drawn."),
    "headrace_prefix_cache_hits": ("cached_prompt_tokens", "Prompt tokens found in the prefix cache."),
    "headrace_prefix_cache_queries": ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
    "headrace_num_preemptions": ("preemptions", "Preemptions of running sequences."),
    "headrace_engine_steps": ("steps", "Steps of the engine loop."),
    "headrace_engine_step_seconds": ("step_seconds", "Seconds spent in steps."),
    "headrace_numeric_errors": ("numeric_errors", "Sequences that ended because of NaN or infinite logits."),
}
_GAUGES: Mapping[str, tuple[str, str]] = {
    "headrace_num_requests_running": ("running", "Sequences that run."),
    "headrace_num_requests_waiting": ("waiting", "Sequences that wait."),
    "headrace_kv_blocks_total": ("blocks_total", "Blocks of the KV pool."),
    "headrace_kv_blocks_held": ("blocks_held", "Blocks held by sequences."),
    "headrace_kv_blocks_evictable": ("blocks_evictable", "Cached blocks that nobody holds."),
    "headrace_weight_bytes": ("weight_bytes", "Memory of the weights."),
    "headrace_kv_bytes": ("kv_bytes", "Memory of the KV pool."),
}


class EngineCollector(Collector):
    """Turns the engine's latest numbers into metrics; what the engine does not tell is left out."""

    def __init__(self) -> None:
        self.latest = EngineStats(counters={}, gauges={})

    def describe(self) -> Iterable[Metric]:
        """Names are known only once the engine has spoken."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Counters and gauges of the latest statistics."""
        for name, (key, text) in _COUNTERS.items():
            if key in self.latest.counters:
                yield CounterMetricFamily(name, text, value=self.latest.counters[key])
        for name, (key, text) in _GAUGES.items():
            if key in self.latest.gauges:
                yield GaugeMetricFamily(name, text, value=self.latest.gauges[key])
        total = self.latest.gauges.get("blocks_total", 0.0)
        if total:
            used = self.latest.gauges.get("blocks_held", 0.0) / total
            yield GaugeMetricFamily("headrace_kv_cache_usage_perc", "Share of KV blocks held, 0 to 1.", used)


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineCollector()
        self.registry.register(self.engine)
        self.finished = Counter(
            "headrace_request_success",
            "Finished choices by finish reason.",
            ["finished_reason"],
            registry=self.registry,
        )
        self.refused = Counter(
            "headrace_request_refused", "Requests answered with an error.", ["code"], registry=self.registry
        )
        self.ttft = self._histogram("headrace_time_to_first_token_seconds", "Arrival to first token.")
        self.itl = self._histogram("headrace_inter_token_latency_seconds", "Between two outputs of a choice.")
        self.e2e = self._histogram("headrace_e2e_request_latency_seconds", "Arrival to the end.")

    def render(self, stats: EngineStats | None) -> bytes:
        """The text of `/metrics`."""
        if stats is not None:
            self.engine.latest = stats
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self.registry)


@dataclass(slots=True)
class RequestClock:
    """Observes one request: feed it every output."""

    metrics: ServerMetrics
    start_s: float = field(default_factory=now_s)
    last_s_by_choice: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    has_first: bool = False

    def see(self, prompt: int, output: RequestOutput) -> None:
        """Note an output of the request's prompt number `prompt`."""
        now = now_s()
        for choice in output.choices:
            if choice.token_ids:
                if not self.has_first:
                    self.has_first = True
                    self.metrics.ttft.observe(now - self.start_s)
                last = self.last_s_by_choice.get((prompt, choice.index))
                if last is not None:
                    self.metrics.itl.observe(now - last)
                self.last_s_by_choice[prompt, choice.index] = now
            if choice.finish_reason is not None:
                self.metrics.finished.labels(choice.finish_reason).inc()

    def done(self) -> None:
        """The request ended well."""
        self.metrics.e2e.observe(now_s() - self.start_s)
