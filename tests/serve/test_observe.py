"""What is told about requests: metrics with known names, the access log, traces, CORS."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.base.config import AccessConfig, ObserveConfig
from headrace.engine.outputs import ChoiceDelta, EngineStats, RequestOutput
from headrace.serve.front.record import Record
from headrace.serve.front.traces import Traces
from headrace.serve.metrics import _COUNTERS, _GAUGES, ServerMetrics
from tests.serve.fake import FakeLLM, LiveServer, Seen, hello, word

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"
TIMINGS = {"queue_s": 0.1, "prefill_s": 0.2, "decode_s": 0.4, "ttft_s": 0.3, "e2e_s": 0.7, "preempted": 1.0}


class TimedLLM(FakeLLM):
    """Gives timings with the last output, as the engine does."""

    async def _run(self, seen: Seen, ids: tuple[int, ...]) -> AsyncIterator[RequestOutput]:
        async for output in super()._run(seen, ids):
            output.timings = TIMINGS if output.finished else None
            yield output


async def secretive(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    yield (word("answer-secret"),)
    yield (ChoiceDelta(index=0, finish_reason="stop"),)


def full_stats() -> EngineStats:
    return EngineStats(
        counters={key: 1.0 for key, _ in _COUNTERS.values()},
        gauges={key: 1.0 for key, _ in _GAUGES.values()},
    )


def test_every_query_of_the_dashboard_names_a_metric_that_exists() -> None:
    text = ServerMetrics().render(full_stats()).decode()
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    counters = {line.split()[2] for line in text.splitlines() if line.endswith(" counter")}
    histograms = {line.split()[2] for line in text.splitlines() if line.endswith(" histogram")}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"(?:headrace|process)_\w+", query)}
    assert len(used) > 25
    for name in used:
        base = name.removesuffix("_bucket")
        assert (base in histograms) if name != base else (name in known), name
        if name in counters:
            assert all(f"rate({name}" in q for q in queries if name in q), f"{name} grows for ever"


def test_metrics_have_the_names_of_vllm() -> None:
    text = ServerMetrics().render(full_stats()).decode()
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "generation_tokens_total",
        "request_success_total",
        "admission_rejections_total",
        "request_prompt_tokens",
        "request_generation_tokens",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_num_preemptions",
        "request_prefill_kv_computed_tokens",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    ):
        assert f"# TYPE headrace_{name} " in text, name


def test_metrics_of_drafts_are_there_where_there_are_drafts() -> None:
    """SP-11: the help text says which tokens an acceptance length counts."""
    counters = {"drafts_checked": 9.0, "drafts_accepted": 6.0, "drafts_accepted_0": 4.0, "draft_rows": 4.0}
    counters |= {
        "draft_step_seconds": 2.0,
        "draft_plain_seconds": 5.0,
        "drafts_proposed": 20.0,
        "draft_why_grammar": 7.0,
    }
    text = ServerMetrics().render(EngineStats(counters=counters, gauges={})).decode()
    prefix = "headrace_spec_decode_num_"
    assert value(text, f'{prefix}accepted_tokens_per_pos_total{{position="0"}}') == 4
    assert value(text, f'{prefix}accepted_tokens_per_pos_total{{position="1"}}') == 0
    assert value(text, f"{prefix}accepted_tokens_total") == 6
    assert value(text, f"{prefix}proposed_tokens_total") == 20
    assert value(text, "headrace_spec_decode_speedup") == 2.5
    assert value(text, "headrace_spec_decode_speedup_vs_off") == 2.5
    assert value(text, "headrace_spec_decode_tokens_per_step") == 2.5  # 1 + 6 / 4
    assert value(text, 'headrace_spec_decode_rows_total{reason="grammar"}') == 7
    assert value(text, 'headrace_spec_decode_rows_total{reason="pays"}') == 0
    assert "acceptance length is 1 + this / num_drafts" in text
    assert "spec_decode" not in ServerMetrics().render(EngineStats(counters={}, gauges={})).decode()


def value(text: str, sample: str) -> float:
    (found,) = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(sample + " ")]
    return found


def test_metrics_count_what_was_done() -> None:
    with LiveServer(TimedLLM(hello), AccessConfig(api_key=("k",))) as live:
        headers = {"x-api-key": "k"}
        for stream in (False, True):
            body = {"prompt": "abc", "stream": stream}
            httpx.post(live.url + "/v1/completions", json=body, headers=headers)
        httpx.post(live.url + "/v1/completions", json={"prompt": 5}, headers=headers)
        httpx.get(live.url + "/nowhere", headers=headers)
        httpx.get(live.url + "/nowhere-else")
        text = httpx.get(live.url + "/metrics", headers=headers).text
    completions = 'headrace_http_requests_total{handler="/v1/completions",method="POST",status='
    assert value(text, completions + '"200"}') == 2
    assert value(text, completions + '"400"}') == 1
    other = 'headrace_http_requests_total{handler="other",method="GET",status='
    assert (value(text, other + '"404"}'), value(text, other + '"401"}')) == (1, 1)
    assert value(text, 'headrace_key_tokens_total{key="key-1",kind="prompt"}') == 6
    assert value(text, 'headrace_key_tokens_total{key="key-1",kind="generation"}') == 24
    assert value(text, "headrace_request_queue_time_seconds_sum") == pytest.approx(0.2)
    assert value(text, "headrace_request_inference_time_seconds_sum") == pytest.approx(1.2)
    assert value(text, "headrace_request_time_per_output_token_seconds_sum") == pytest.approx(2 * 0.4 / 11)
    assert value(text, "headrace_request_generation_tokens_count") == 2
    assert value(text, "headrace_engine_alive") == 1
    assert value(text, "headrace_engine_in_process") == 0
    assert 0 <= value(text, "headrace_http_body_wait_seconds_total") < 1
    assert value(text, "headrace_http_request_seconds_total") > 0
    assert value(text, "headrace_http_unread_seconds_total") == 0


def test_metrics_tell_what_was_asked_for_and_what_holds_but_no_path() -> None:
    with LiveServer(TimedLLM(hello)) as live:
        text = httpx.get(live.url + "/metrics").text
    told = 'headrace_setting{asked="auto",name="model.max_model_len",reason="it is small",value="64"}'
    assert value(text, told) == 1
    asked = 'headrace_setting{asked="8",name="schedule.max_num_seqs",reason="asked for",value="8"}'
    assert value(text, asked) == 0
    assert "secret" not in text


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]


def ask_for_secrets(live: LiveServer) -> None:
    body = {"prompt": "prompt-secret", "request_id": "mine"}
    headers = {"authorization": "Bearer key-secret"}
    for stream in (False, True):
        httpx.post(
            live.url + "/v1/completions?q=query-secret", json=body | {"stream": stream}, headers=headers
        )
    httpx.get(live.url + "/v1/models", headers={"x-api-key": "wrong-secret"})


def test_the_access_log_has_numbers_and_no_texts(capfd: pytest.CaptureFixture[str]) -> None:
    access, observe = AccessConfig(api_key=("key-secret",)), ObserveConfig(access_log=True)
    with LiveServer(TimedLLM(secretive), access, observe) as live:
        ask_for_secrets(live)
    shown = capfd.readouterr().err
    assert "secret" not in shown
    first, second, third = [json.loads(line) for line in shown.splitlines()]
    for line in (first, second):
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
        assert (line["key"], line["client"], line["whole"]) == ("key-1", "127.0.0.1", True)
        assert (line["prompt_tokens"], line["completion_tokens"]) == (13, 13)
        assert (line["queue_s"], line["finish_reasons"]) == (0.1, ["stop"])
        assert line["request_id"].endswith("mine")
        assert 0 < line["ttft_s"] <= line["seconds"]
        assert line["bytes"] > 100
    assert (third["status"], third["key"]) == (401, "")
    assert "request_id" not in third


def test_prompts_are_logged_only_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    access = AccessConfig(api_key=("key-secret",))
    observe = ObserveConfig(access_log=True, log_prompts=True)
    with LiveServer(TimedLLM(secretive), access, observe) as live:
        ask_for_secrets(live)
    lines = lines_of(capfd)
    assert [json.loads(line["body"])["prompt"] for line in lines[:2]] == ["prompt-secret"] * 2
    with LiveServer(TimedLLM(secretive), access, ObserveConfig(log_prompts=True)) as live:
        ask_for_secrets(live)
    assert lines_of(capfd) == []


def test_a_client_that_leaves_is_logged_so(capfd: pytest.CaptureFixture[str]) -> None:
    async def endless(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        import asyncio

        while True:
            yield (word("x"),)
            await asyncio.sleep(0.01)

    with LiveServer(TimedLLM(endless), observe=ObserveConfig(access_log=True)) as live:
        body = {"prompt": "x", "stream": True}
        with httpx.stream("POST", live.url + "/v1/completions", json=body) as response:
            next(response.iter_bytes())
        while not live.llm.seen[0].closed:
            pass
        httpx.get(live.url + "/health")
    first, _ = lines_of(capfd)
    assert (first["status"], first["whole"], first["finish_reasons"]) == (200, False, [])
    assert first["completion_tokens"] > 0


def test_traces_show_where_the_time_went() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    record = Record(
        method="POST",
        path="/v1/x",
        client="",
        traceparent=parent,
        start_unix_s=100.0,
        seconds=1.0,
        status=200,
    )
    traces.report(record)
    assert exporter.get_finished_spans() == ()  # it never reached the engine
    record.answered.see(
        0, RequestOutput(request_id="r", prompt_ids=(1, 2), choices=(), finished=True, timings=TIMINGS)
    )
    traces.report(record)
    traces.close()
    *phases, whole = exporter.get_finished_spans()
    assert [s.name for s in phases] == ["queue", "prefill", "decode"]
    assert format(whole.context.trace_id, "032x") == parent[3:35]
    assert format(whole.parent.span_id, "016x") == parent[36:52]
    assert {s.parent.span_id for s in phases} == {whole.context.span_id}
    lengths = [(s.end_time - s.start_time) / 1e9 for s in (*phases, whole)]
    assert lengths == pytest.approx([0.1, 0.2, 0.4, 1.0])
    assert whole.attributes["gen_ai.request.id"] == "r"
    assert whole.attributes["gen_ai.latency.time_in_queue"] == 0.1


def test_traces_are_sent_to_the_endpoint() -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        with LiveServer(TimedLLM(hello), observe=ObserveConfig(otlp_endpoint=endpoint)) as live:
            httpx.post(live.url + "/v1/completions", json={"prompt": "prompt-secret"})
        for end in live.state.at_end:
            end()
        collector.shutdown()
    ((path, body),) = got
    assert path == "/v1/traces"
    assert b"POST /v1/completions" in body
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("origins", "allowed"), [(("https://a.example",), True), ((), False), (("*",), True)]
)
def test_pages_of_named_origins_may_call(origins: tuple[str, ...], allowed: bool) -> None:
    access = AccessConfig(api_key=("k",), cors_origins=origins)
    with LiveServer(FakeLLM(hello), access) as live:
        asked = {
            "origin": "https://a.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = httpx.options(live.url + "/v1/completions", headers=asked)
        assert (preflight.status_code == 200) == allowed
        headers = {"origin": "https://a.example", "x-api-key": "k"}
        real = httpx.post(live.url + "/v1/completions", json={"prompt": "x"}, headers=headers)
        assert ("access-control-allow-origin" in real.headers) == allowed
        refused = httpx.post(live.url + "/v1/completions", headers={"origin": "https://a.example"})
        assert refused.status_code == 401
        other = httpx.options(live.url + "/v1/completions", headers=asked | {"origin": "https://b.example"})
        assert (other.status_code == 200) == (origins == ("*",))
