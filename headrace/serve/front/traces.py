"""OpenTelemetry traces: a span for each request, with the engine's phases below it. Needs the extra `otel`.

Attribute names are those of the GenAI conventions that vLLM uses too.
"""

from typing import Any

from headrace.base.errors import ConfigError
from headrace.serve.front.record import Record

NS = 1_000_000_000
_PHASES = ("queue", "prefill", "decode")
_LATENCIES = {
    "gen_ai.latency.time_in_queue": "queue_s",
    "gen_ai.latency.time_to_first_token": "ttft_s",
    "gen_ai.latency.time_in_model_prefill": "prefill_s",
    "gen_ai.latency.time_in_model_decode": "decode_s",
    "gen_ai.latency.e2e": "e2e_s",
}


class Traces:
    """Makes spans of records.

    Args:
        provider: an OpenTelemetry tracer provider.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 - an extra
            TraceContextTextMapPropagator,
        )

        self._provider = provider
        self._tracer = provider.get_tracer("headrace")
        self._propagator = TraceContextTextMapPropagator()

    def report(self, record: Record) -> None:
        """Make the spans of a request that reached the engine; probes and pages make none."""
        answered = record.answered
        if not answered.request_id:
            return
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        begin = int(record.start_unix_s * NS)
        parent = self._propagator.extract({"traceparent": record.traceparent} if record.traceparent else {})
        attributes: dict[str, Any] = {
            "http.request.method": record.method,
            "url.path": record.path,
            "http.response.status_code": record.status,
            "gen_ai.request.id": answered.request_id,
            "gen_ai.usage.prompt_tokens": answered.prompt_tokens,
            "gen_ai.usage.completion_tokens": answered.completion_tokens,
            "gen_ai.response.finish_reasons": answered.finish_reasons,
            "headrace.key": record.key,
            "headrace.cached_tokens": answered.cached_tokens,
        }
        timings = answered.timings
        attributes |= {name: timings[key] for name, key in _LATENCIES.items() if key in timings}
        span = self._tracer.start_span(
            f"{record.method} {record.path}",
            context=parent,
            kind=trace.SpanKind.SERVER,
            start_time=begin,
            attributes=attributes,
        )
        if record.status >= 500 or "error" in answered.finish_reasons:
            span.set_status(trace.StatusCode.ERROR)
        end = begin + int(record.seconds * NS)
        # The engine's phases end when the last token is there, which the end of the answer follows.
        at = end - int(sum(timings.get(f"{phase}_s", 0.0) for phase in _PHASES) * NS)
        inner = trace.set_span_in_context(span)
        for phase in _PHASES:
            until = at + int(timings.get(f"{phase}_s", 0.0) * NS)
            self._tracer.start_span(phase, context=inner, start_time=max(begin, at)).end(until)
            at = until
        span.end(end)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def open_traces(endpoint: str) -> Traces:
    """Traces that go to an OTLP endpoint over HTTP, such as `http://127.0.0.1:4318/v1/traces`.

    Raises:
        ConfigError: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra
    except ImportError as err:
        raise ConfigError(
            "observe.otlp_endpoint needs OpenTelemetry: pip install 'headrace[otel]'",
            param="observe.otlp_endpoint",
        ) from err
    provider = TracerProvider(resource=Resource.create({"service.name": "headrace"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Traces(provider)
