"""Prometheus metrics: what this process observes of requests, and the engine's own counters and gauges.

Names are vLLM's with our prefix, definitions those of `base/metrics`. Arrival is the moment a route has read
the request. Queue, prefill and decode time are the engine's, of each prompt; TPOT is that of its slowest
choice.
Failed requests are counted by reason and stay out of the histograms.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.base.clock import now_s
from headrace.base.metrics import e2el_s, tokens_per_verification, tpot_s, ttft_s
from headrace.base.metrics.drafts import DraftReason
from headrace.base.tasks import MAX_DEPTH
from headrace.engine.cost.meter import PHASES
from headrace.engine.outputs import EngineHealth, EngineStats, RequestOutput
from headrace.engine.settings.notes import Setting
from headrace.serve.front.histogram import Histogram
from headrace.serve.front.record import Answered, Record, current_answered
from headrace.serve.front.waits import Waits
from headrace.serve.pages.recent import Recent

_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"})
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_TOKENS = tuple(float(2**n) for n in range(18))
_PHASES: Mapping[str, tuple[str, str]] = {
    "headrace_request_queue_time_seconds": ("queue_s", "Arrival to the first step."),
    "headrace_request_prefill_time_seconds": ("prefill_s", "First step to first token."),
    "headrace_request_decode_time_seconds": ("decode_s", "First token to the end."),
}
_COUNTS: Mapping[str, tuple[str, str]] = {
    "headrace_request_num_preemptions": ("preempted", "Preemptions of a request."),
    "headrace_request_prefill_kv_computed_tokens": ("prefill_tokens", "Prompt tokens computed, not cached."),
}

_COUNTERS: Mapping[str, tuple[str, str]] = {
    "headrace_prompt_tokens": ("prompt_tokens", "Prompt tokens of finished prefills, cached ones included."),
    "headrace_generation_tokens": ("generated_tokens", "Tokens drawn."),
    "headrace_prompt_tokens_cached": ("cached_prompt_tokens", "Prompt tokens that needed no computing."),
    "headrace_prefix_cache_hits": ("cached_prompt_tokens", "Prompt tokens found in the prefix cache."),
    "headrace_prefix_cache_queries": ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
    "headrace_num_preemptions": ("preemptions", "Preemptions of running sequences."),
    "headrace_engine_steps": ("steps", "Steps of the engine loop."),
    "headrace_engine_step_seconds": ("step_seconds", "Seconds spent in steps."),
    "headrace_program_seconds": ("program_seconds", "Seconds of the model's operations within steps."),
    "headrace_engine_loop_seconds": ("loop_seconds", "Seconds of steps with their planning and commit."),
    "headrace_grammars_compiled": ("grammars_compiled", "Grammars compiled for a request."),
    "headrace_grammars_refused": ("grammars_refused", "Grammars that could not be used."),
    "headrace_grammar_cache_hits": ("grammar_cache_hits", "Requests whose grammar was ready, or known bad."),
    "headrace_grammar_compilation_time_seconds": ("grammar_compile_seconds", "Seconds of compilation."),
    "headrace_grammar_mask_seconds": ("grammar_mask_seconds", "Seconds spent on masks of tokens."),
    "headrace_spec_decode_num_drafts": ("draft_rows", "Rows that checked drafts."),
    "headrace_spec_decode_num_draft_tokens": ("drafts_checked", "Drafts that were checked."),
    "headrace_spec_decode_num_accepted_tokens": (
        "drafts_accepted",
        "Drafts that were accepted; the acceptance length is 1 + this / num_drafts.",
    ),
    "headrace_spec_decode_num_proposed_tokens": ("drafts_proposed", "Drafts that were made, checked or not."),
    "headrace_spec_decode_num_faults": ("draft_faults", "Times that making drafts failed."),
    "headrace_numeric_errors": ("numeric_errors", "Sequences that ended because of NaN or infinite logits."),
}
_PHASED: Mapping[str, tuple[str, str]] = {
    "headrace_phase_steps": ("steps", "Steps of a phase: prefill when any row is of a prompt."),
    "headrace_phase_step_tokens": ("step_tokens", "Tokens computed in steps of a phase."),
    "headrace_phase_step_seconds": ("step_seconds", "Seconds of the steps of a phase."),
    "headrace_step_time_predicted_seconds": ("step_predicted_seconds", "Seconds that the cost model said."),
    "headrace_step_time_error_seconds": ("step_error_seconds", "Sum of |predicted - measured| over steps."),
    "headrace_step_bytes_read": ("step_bytes", "Bytes of weights, keys and values that steps read."),
    "headrace_step_operations": ("step_operations", "Operations of matrices and attention."),
    "headrace_memory_roof_seconds": ("memory_roof_seconds", "Least seconds of steps that memory bounds."),
    "headrace_compute_roof_seconds": (
        "compute_roof_seconds",
        "Least seconds of steps that arithmetic bounds.",
    ),
    "headrace_decode_row_seconds": (
        "decode_row_seconds",
        "Seconds of rows that compute the next token of an answer, each for itself.",
    ),
}
_GAUGES: Mapping[str, tuple[str, str]] = {
    "headrace_num_requests_running": ("running", "Sequences that run."),
    "headrace_num_requests_waiting": ("waiting", "Sequences that wait."),
    "headrace_num_slots": ("slots", "Sequences that may run together."),
    "headrace_compute_threads": ("threads", "Compute threads."),
    "headrace_num_tokens_waiting": ("waiting_tokens", "Prompt tokens of sequences that wait."),
    "headrace_kv_blocks_total": ("blocks_total", "Blocks of the KV pool."),
    "headrace_kv_blocks_held": ("blocks_held", "Blocks held by sequences."),
    "headrace_kv_blocks_evictable": ("blocks_evictable", "Cached blocks that nobody holds."),
    "headrace_weight_bytes": ("weight_bytes", "Memory of the weights."),
    "headrace_kv_bytes": ("kv_bytes", "Memory of the KV pool."),
    "headrace_limit_read_bytes_per_second": ("limit_read_bytes", "Bytes that this machine reads a second."),
    "headrace_limit_operations_per_second": ("limit_operations", "Operations that it does a second at most."),
}


_BY_METHOD: Mapping[str, tuple[str, str]] = {
    "headrace_spec_decode_num_drafts_per_method": ("rows", "Rows that checked drafts, by who made them."),
    "headrace_spec_decode_num_draft_tokens_per_method": ("checked", "Drafts that were checked, the same."),
    "headrace_spec_decode_num_accepted_tokens_per_method": ("accepted", "Drafts that were accepted."),
    "headrace_spec_decode_num_first_accepted_per_method": ("first", "Rows whose first draft was accepted."),
}
"""Of the counters `drafts_by_METHOD_KEY`."""


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
        for name, (key, text) in _PHASED.items():
            family = CounterMetricFamily(name, text, labels=["phase"])
            for phase in PHASES:
                if f"{phase}_{key}" in self.latest.counters:
                    family.add_metric([phase], self.latest.counters[f"{phase}_{key}"])
            if family.samples:
                yield family
        for name, (key, text) in _GAUGES.items():
            if key in self.latest.gauges:
                yield GaugeMetricFamily(name, text, value=self.latest.gauges[key])
        yield from _draft_metrics(self.latest.counters)
        total = self.latest.gauges.get("blocks_total", 0.0)
        if total:
            used = self.latest.gauges.get("blocks_held", 0.0) / total
            yield GaugeMetricFamily("headrace_kv_cache_usage_perc", "Share of KV blocks held, 0 to 1.", used)


def _draft_metrics(counters: Mapping[str, float]) -> Iterable[Metric]:
    """Accepted drafts by their place in the row, and what checking them gains; nothing if there are none."""
    if "drafts_checked" not in counters:
        return
    by_place = CounterMetricFamily(
        "headrace_spec_decode_num_accepted_tokens_per_pos",
        "Drafts that were accepted, by their place in the row.",
        labels=["position"],
    )
    for place in range(MAX_DEPTH):
        by_place.add_metric([str(place)], counters.get(f"drafts_accepted_{place}", 0.0))
    yield by_place
    seconds = counters.get("draft_step_seconds", 0.0)
    speedup = counters["draft_plain_seconds"] / seconds if seconds else 1.0
    for name in ("speedup", "speedup_vs_off"):  # one number; the second name says against what
        text = "Estimated seconds of plain steps for the tokens of steps with drafts, over those they took."
        yield GaugeMetricFamily(f"headrace_spec_decode_{name}", text, speedup)
    yield GaugeMetricFamily(
        "headrace_spec_decode_tokens_per_step",
        "Tokens of a row that checked drafts, the one drawn after them included; 1: none did.",
        tokens_per_verification(int(counters.get("drafts_accepted", 0)), int(counters.get("draft_rows", 0)))
        or 1.0,
    )
    by_reason = CounterMetricFamily(
        "headrace_spec_decode_rows",
        "Rows that drew a token, by what decided how many drafts they checked.",
        labels=["reason"],
    )
    for reason in DraftReason:
        by_reason.add_metric([reason.value], counters.get(f"draft_why_{reason.value}", 0.0))
    yield by_reason
    for name, (key, text) in _BY_METHOD.items():
        by_method = CounterMetricFamily(name, text, labels=["method"])
        for counter, value in counters.items():
            if counter.startswith("drafts_by_") and counter.endswith(f"_{key}"):
                by_method.add_metric([counter[len("drafts_by_") : -len(key) - 1]], value)
        yield by_method


class ServerMetrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineCollector()
        self.recent = Recent()
        self.registry.register(self.engine)
        self.waits = Waits()
        self.registry.register(self.waits)
        self.finished = Counter(
            "headrace_request_success",
            "Finished choices by finish reason.",
            ["finished_reason"],
            registry=self.registry,
        )
        self.refused = Counter(
            "headrace_request_refused", "Requests answered with an error.", ["code"], registry=self.registry
        )
        self.rejections = Counter(
            "headrace_admission_rejections",
            "Requests refused because of load.",
            ["reason"],
            registry=self.registry,
        )
        self.http = Counter(
            "headrace_http_requests",
            "HTTP requests.",
            ["method", "handler", "status"],
            registry=self.registry,
        )
        self.key_tokens = Counter(
            "headrace_key_tokens", "Tokens by API key.", ["key", "kind"], registry=self.registry
        )
        self.alive = Gauge("headrace_engine_alive", "Whether /health is 200.", registry=self.registry)
        self.restarts = Gauge(
            "headrace_engine_restarts", "New engine processes since start.", registry=self.registry
        )
        self.in_process = Gauge(
            "headrace_engine_in_process",
            "1: the engine runs in this process, whose CPU seconds are its own too.",
            registry=self.registry,
        )
        self.settings = Gauge(
            "headrace_setting",
            "Settings as resolved at start; 1: less than was asked for, or than would be good.",
            ["name", "asked", "value", "reason"],
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.phases = {n: self._histogram(n, text) for n, (_, text) in _PHASES.items()}
        self.counts = {n: self._histogram(n, text, (0.0, *_TOKENS)) for n, (_, text) in _COUNTS.items()}
        self.inference = self._histogram("headrace_request_inference_time_seconds", "First step to the end.")
        self.tpot = self._histogram(
            "headrace_request_time_per_output_token_seconds", "Decode time over tokens after the first."
        )
        self.prompt_tokens = self._histogram("headrace_request_prompt_tokens", "Prompt tokens.", _TOKENS)
        self.output_tokens = self._histogram("headrace_request_generation_tokens", "Tokens drawn.", _TOKENS)
        self.ttft = self._histogram("headrace_time_to_first_token_seconds", "Arrival to first token.")
        self.itl = self._histogram("headrace_inter_token_latency_seconds", "Between two outputs of a choice.")
        self.e2e = self._histogram("headrace_e2e_request_latency_seconds", "Arrival to the end.")

    def tell_settings(self, settings: Iterable[Setting]) -> None:
        """Show what holds, and why; paths and names of models are nobody's business."""
        for setting in settings:
            if setting.name != "model":
                labels = (setting.name, setting.asked, setting.value, setting.reason)
                self.settings.labels(*labels).set(setting.falls_short)

    def note_health(self, health: EngineHealth, num_restarts: int) -> None:
        """Take how the engine is."""
        self.alive.set(health.alive and health.making_progress)
        self.restarts.set(num_restarts)

    def render(self, stats: EngineStats | None) -> bytes:
        """The text of `/metrics`."""
        if stats is not None:
            self.engine.latest = stats
        return generate_latest(self.registry)

    def report(self, record: Record, paths: Collection[str]) -> None:
        """Count an HTTP request; unknown paths count together."""
        handler = record.path if record.path in paths else "other"
        method = record.method if record.method in _METHODS else "other"
        self.http.labels(method, handler, str(record.status)).inc()
        self.count_tokens(record)

    def count_tokens(self, record: Record) -> None:
        """Count the tokens of a request for its key."""
        answered = record.answered
        if answered.request_id:
            self.key_tokens.labels(record.key, "prompt").inc(answered.prompt_tokens)
            self.key_tokens.labels(record.key, "generation").inc(answered.completion_tokens)

    def see_end(self, output: RequestOutput, num_choices: int = 1) -> None:
        """Observe a prompt that ended well with so many choices."""
        timings, usage = output.timings or {}, output.usage
        self.recent.see(output, now_s())
        for name, (key, _) in (*_PHASES.items(), *_COUNTS.items()):
            if key in timings:
                (self.phases.get(name) or self.counts[name]).observe(timings[key])
        self.prompt_tokens.observe(usage.prompt_tokens)
        self.output_tokens.observe(usage.completion_tokens)
        decode_s = timings.get("decode_s", 0.0)
        self.inference.observe(timings.get("prefill_s", 0.0) + decode_s)
        tpot = tpot_s(0.0, decode_s, usage.completion_tokens // max(1, num_choices))
        if tpot is not None:
            self.tpot.observe(tpot)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(name, text, buckets, self.registry)


@dataclass(slots=True)
class RequestClock:
    """Observes one request: feed it every output."""

    metrics: ServerMetrics
    start_s: float = field(default_factory=now_s)
    last_s_by_choice: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    has_first: bool = False
    answered: Answered = field(default_factory=current_answered)

    def see(self, prompt: int, output: RequestOutput) -> None:
        """Note an output of the request's prompt number `prompt`."""
        now = now_s()
        for choice in output.choices:
            if choice.token_ids:
                if not self.has_first:
                    self.has_first = True
                    self.answered.ttft_s = ttft_s(self.start_s, now)
                    self.metrics.ttft.observe(self.answered.ttft_s)
                last = self.last_s_by_choice.get((prompt, choice.index))
                if last is not None:
                    self.metrics.itl.observe(now - last)  # `itls_s` of two outputs, at a fifth of its time
                self.last_s_by_choice[prompt, choice.index] = now
            if choice.finish_reason is not None:
                self.metrics.finished.labels(choice.finish_reason).inc()
                self.answered.finish_reasons.append(choice.finish_reason)
        self.answered.see(prompt, output)
        if output.finished and output.error is None:
            self.metrics.see_end(output, sum(of == prompt for of, _ in self.last_s_by_choice))

    def done(self) -> None:
        """The request ended well."""
        self.metrics.e2e.observe(e2el_s(self.start_s, now_s()))
