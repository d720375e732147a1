"""Our histogram shows what the library's shows."""

import random

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from headrace.base.metrics import itls_s, ttft_s
from headrace.engine.outputs import ChoiceDelta, RequestOutput
from headrace.serve import metrics as metrics_module
from headrace.serve.front.histogram import Histogram
from headrace.serve.metrics import RequestClock, ServerMetrics

BOUNDS = (0.001, 0.0025, 0.5, 1.0, 30.0)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_it_shows_the_same_as_the_librarys() -> None:
    rng, ours, theirs = random.Random(3), CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("wait_seconds", "Waiting.", BOUNDS, ours)
    reference = Reference("wait_seconds", "Waiting.", buckets=BOUNDS, registry=theirs)
    assert lines(ours) == lines(theirs)
    for _ in range(300):
        value = rng.choice((*BOUNDS, 0.0, 99.0, rng.expovariate(1.0)))
        histogram.observe(value)
        reference.observe(value)
    assert lines(ours) == lines(theirs)
    assert 'wait_seconds_bucket{le="+Inf"} 300.0' in lines(ours)


def test_latencies_of_a_request_are_those_of_the_definitions(monkeypatch) -> None:
    """The clock takes gaps one by one, for speed; `itls_s` and `ttft_s` say what they are."""
    times = iter([10.0, 10.5, 10.75, 12.0])
    monkeypatch.setattr(metrics_module, "now_s", lambda: next(times))
    metrics = ServerMetrics()
    clock = RequestClock(metrics=metrics, start_s=9.0)
    for _ in range(4):
        choice = ChoiceDelta(index=0, text="a", token_ids=(1,))
        clock.see(0, RequestOutput(request_id="r", prompt_ids=(1,), choices=(choice,)))
    shown = lines(metrics.registry)
    gaps_s = itls_s((10.0, 10.5, 10.75, 12.0))
    assert f"headrace_inter_token_latency_seconds_sum {sum(gaps_s)}" in shown
    assert f"headrace_inter_token_latency_seconds_count {float(len(gaps_s))}" in shown
    assert f"headrace_time_to_first_token_seconds_sum {ttft_s(9.0, 10.0)}" in shown
