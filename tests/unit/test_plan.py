"""Plans: memory by hand, traffic by its seed, and the scheduler in virtual time against queueing by hand."""

from dataclasses import replace

import pytest

from headrace.base.config import EngineConfig, KVConfig, ModelConfig, ScheduleConfig
from headrace.base.errors import ConfigError
from headrace.base.metrics import Slo
from headrace.cli.commands.plan import parse_bytes
from headrace.engine.build import make_scheduler
from headrace.engine.resolve import DeviceFacts, ModelFacts, resolve
from headrace.engine.sizing import WORKING_BYTES
from headrace.tools.plan.planning import disturbance
from headrace.tools.plan.report import saturation, tables_of, traffic_of
from headrace.tools.plan.simulate import simulate
from headrace.tools.plan.sizes import IDLE_BYTES, VOCAB_ENTRY_BYTES, sizes_of
from headrace.tools.plan.traffic import Traffic, asks, span

FACTS = ModelFacts(
    name="m",
    description="d",
    max_length=8192,
    vocab_size=1000,
    layers=4,
    kv_heads=2,
    head_size=64,
    stored_bytes=300_000_000,
    parameters=500_000_000,
    width=512,
    mlp_width=2048,
)
DEVICE = DeviceFacts(
    backend="native", isa="avx2", threads=2, reasons=(), memory_bytes=8 << 30, memory_reason="asked for"
)


def resolved(**given):
    config = EngineConfig(
        model=ModelConfig(max_model_len=given.pop("length", 4096)),
        kv=KVConfig(dtype="f16", num_blocks=given.pop("num_blocks", 1024)),
        schedule=ScheduleConfig(**{"max_num_seqs": 8, **given}),
    )
    return resolve(config, FACTS, DEVICE)


def steps_of(overhead=0.01, token=0.001):
    return lambda rows: overhead + token * sum(row.count for row in rows)


def run(traffic, replicas=1, step_s=None, **settings):
    found = resolved(**settings)
    return simulate(
        traffic, lambda clock: make_scheduler(found, clock), step_s or steps_of(), replicas=replicas
    )


def test_memory_by_hand():
    sizes = sizes_of(resolved(), 8 << 30, 1000)
    assert sizes.weight_bytes == 300_000_000
    assert sizes.kv_token_bytes == 4 * 2 * 2 * 64 * 2  # layers, heads, keys and values, head size, 16 bits
    assert sizes.kv_pool_bytes == 1024 * 16 * sizes.kv_token_bytes
    assert sizes.pool_tokens == 16384
    assert sizes.sequences == ((1000, 8),)  # 16 would fit the pool, 8 may run
    two_programs = 2 * 4 * 512 * (4 * 512 + 7 * 2048 // 2)  # of answers, and of hidden states
    assert sizes.activation_bytes == two_programs + 8 * 64 * 1000 + 8 * 8 * 4096
    assert sizes.activation_bytes + sizes.process_bytes == WORKING_BYTES  # the least that is left
    assert sizes.total_bytes == sizes.weight_bytes + sizes.kv_pool_bytes + WORKING_BYTES
    touched = two_programs // 2 + 8 * 8 * 4096  # embeddings alone touch the other
    parts = sizes.weight_bytes + sizes.kv_pool_bytes + touched + IDLE_BYTES + 1000 * VOCAB_ENTRY_BYTES
    assert sizes.resident_bytes == parts


@pytest.mark.parametrize("tokens", [512, 8192])
def test_what_plan_asks_for_is_what_serving_needs(tokens):
    """A step below the least reserve and one above it."""
    found = resolved(max_num_batched_tokens=tokens)
    assert (found.step_shape.working_bytes > WORKING_BYTES) == (tokens == 8192)
    total = sizes_of(found, 8 << 30, None).total_bytes
    given = replace(DEVICE, memory_bytes=total)
    assert resolve(found.config, FACTS, given).num_blocks == found.num_blocks
    with pytest.raises(ConfigError, match=rf"{found.num_blocks - 1} blocks\) fit"):
        resolve(found.config, FACTS, replace(given, memory_bytes=total - 1))


@pytest.mark.parametrize("kv", [KVConfig(dtype="f16"), KVConfig(dtype="f16", num_blocks=8)])
def test_too_little_memory_is_said_without_negative_blocks(kv):
    config = EngineConfig(kv=kv)
    with pytest.raises(ConfigError, match=r"need 6\d\d MiB, the process has 300 MiB") as refused:
        resolve(config, FACTS, replace(DEVICE, memory_bytes=300 << 20))
    assert "-" not in refused.value.message
    enough = int(refused.value.message.split("give the process ")[1].split()[0])
    if kv.num_blocks is None:
        assert resolve(config, FACTS, replace(DEVICE, memory_bytes=enough)).num_blocks >= 1


def test_sequences_that_fit_are_bounded_by_the_pool():
    sizes = sizes_of(resolved(num_blocks=256), 8 << 30, None)
    assert dict(sizes.sequences) == {1024: 4, 4096: 1}


def test_one_request_takes_its_steps():
    # 600 tokens: chunks of 512 and 88; then 9 steps of one token.
    (life,) = run(Traffic(num_requests=1, users=1, prompt_tokens=(600, 600), output_tokens=(10, 10))).lives
    ttft = life.timing.first_token_s - life.timing.arrival_s
    assert ttft == pytest.approx(2 * 0.01 + 0.6)
    assert life.timing.finished_s - life.timing.first_token_s == pytest.approx(9 * 0.011)


def test_users_wait_for_their_answers():
    found = run(Traffic(num_requests=7, users=2, prompt_tokens=(16, 16), output_tokens=(4, 4)))
    spans = sorted((life.timing.arrival_s, life.timing.finished_s) for life in found.lives)
    assert len(spans) == 7
    for moment, _ in spans:
        assert sum(begin <= moment < end for begin, end in spans) <= 2


def test_a_shared_prefix_is_computed_once():
    traffic = Traffic(
        num_requests=5, users=1, prompt_tokens=(100, 100), output_tokens=(2, 2), shared_tokens=64
    )
    assert [life.cached_tokens for life in run(traffic).lives] == [0, 64, 64, 64, 64]


def test_a_second_engine_halves_the_work_of_each():
    traffic = Traffic(num_requests=200, rate=1000.0, prompt_tokens=(64, 64), output_tokens=(32, 32))
    one, two = run(traffic), run(traffic, replicas=2)
    assert two.seconds == pytest.approx(one.seconds / 2, rel=0.05)
    assert two.busy_s[0] == pytest.approx(two.busy_s[1], rel=0.05)


def test_low_traffic_leaves_no_queue_and_high_traffic_does():
    def queue_ms(rate):
        traffic = Traffic(num_requests=100, rate=rate, prompt_tokens=(64, 64), output_tokens=(16, 16))
        return traffic_of(run(traffic), Slo())["queue_ms"]["p50"]

    assert queue_ms(0.5) < 20
    assert queue_ms(100.0) > 1000


@pytest.mark.parametrize(
    ("rate", "line"),
    [
        (0.5, None),
        (1.4, None),
        (4.0, "saturated: 4 requests/s asked, 1.9"),
        (100.0, "saturated: 100 requests/s asked, 1.9"),
    ],
)
def test_engines_that_fall_behind_are_called_saturated(rate, line):
    # A request has the slot for 0.074 s of its prompt and 39 steps of 0.011 s: 1.98 a second.
    traffic = Traffic(num_requests=200, rate=rate, prompt_tokens=(64, 64), output_tokens=(40, 40))
    said = saturation(run(traffic, max_num_seqs=1), rate)
    assert (said or "").startswith(line or "")
    assert (said is None) == (line is None)
    assert saturation(run(replace(traffic, rate=None, users=9), max_num_seqs=1), None) is None


def test_turned_away_requests_are_not_served():
    traffic = Traffic(num_requests=50, rate=100.0, prompt_tokens=(64, 64), output_tokens=(8, 8))
    assert "saturated" in (saturation(run(traffic, max_queued_requests=2), 100.0) or "")


def test_a_rehearsal_without_its_cores_is_warned_of():
    assert disturbance(1.9, 2) == disturbance(1.2, 2) == []
    (line,) = disturbance(1.1, 2)
    assert "with 1.1 of 2 cores" in line


def test_refused_requests_are_counted_and_leave_the_figures():
    traffic = Traffic(num_requests=50, rate=1e6, prompt_tokens=(64, 64), output_tokens=(8, 8))
    figures = traffic_of(run(traffic, max_queued_requests=2), Slo())
    assert figures["requests"] == 50
    assert figures["refused"] == 50 - figures["finished"] > 0


def test_late_requests_are_no_good_ones():
    traffic = Traffic(num_requests=50, rate=1e6, prompt_tokens=(64, 64), output_tokens=(64, 64))
    figures = traffic_of(run(traffic, max_queue_s=0.5), Slo(ttft_s=1e6))
    assert 0 < figures["finished"] < 50
    assert figures["good_share"] == figures["finished"] / 50


def test_goodput_counts_requests_within_every_bound():
    traffic = Traffic(num_requests=40, rate=4.0, prompt_tokens=(64, 512), output_tokens=(8, 32))
    found = run(traffic)
    every = traffic_of(found, Slo())
    assert every["good_share"] == 1.0
    median = every["ttft_ms"]["p50"]
    half = traffic_of(found, Slo(ttft_s=median / 1e3))
    assert half["good_share"] == pytest.approx(0.5, abs=0.03)
    assert half["goodput_requests_per_s"] == pytest.approx(half["good_share"] * half["requests_per_s"])
    assert traffic_of(found, Slo(ttft_s=median / 1e3, tpot_s=1e-9))["good_share"] == 0.0


def test_a_policy_that_waits_is_waited_for():
    traffic = Traffic(num_requests=3, users=3, prompt_tokens=(16, 16), output_tokens=(2, 2))
    found = run(traffic, policy="dynamic", dynamic_size=8, dynamic_window_ms=500.0)
    assert min(life.timing.first_scheduled_s - life.timing.arrival_s for life in found.lives) >= 0.5


def test_equal_seeds_give_equal_traffic():
    one = Traffic(num_requests=20, rate=3.0, prompt_tokens=(8, 80), output_tokens=(1, 9), seed=4)
    assert list(asks(one)) == list(asks(one))
    assert list(asks(one)) != list(asks(replace(one, seed=5)))
    lengths = [len(ask.prompt) for ask in asks(one)]
    assert 8 <= min(lengths) < max(lengths) <= 80


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "--rate"),
        ({"rate": 1.0, "users": 1}, "one of them"),
        ({"rate": 0.0}, "positive"),
        ({"users": 0}, "at least 1"),
        ({"users": 1, "num_requests": 0}, "--requests"),
        ({"users": 1, "prompt_tokens": (9, 3)}, "--prompt-tokens"),
        ({"users": 1, "output_tokens": (0, 3)}, "--output-tokens"),
        ({"users": 1, "prompt_tokens": (9, 30), "shared_tokens": 9}, "--shared-tokens"),
    ],
)
def test_impossible_traffic_is_refused_by_name(given, word):
    with pytest.raises(ConfigError, match=word):
        Traffic(**given)


def test_no_engines_are_refused():
    with pytest.raises(ConfigError, match="--replicas"):
        run(Traffic(users=1), replicas=0)


def test_spans_and_bytes_are_read():
    assert span("--x", "7") == (7, 7)
    assert span("--x", "7:9") == (7, 9)
    with pytest.raises(ConfigError, match="--x"):
        span("--x", "seven")
    assert parse_bytes("16GiB") == parse_bytes("16g") == 16 << 30
    assert parse_bytes("1.5 MB") == 3 << 19
    assert parse_bytes("123") == 123
    with pytest.raises(ConfigError, match="memory"):
        parse_bytes("much")


def test_a_report_is_told_in_tables_with_a_column_for_each_figure():
    speed = {"prefill": [], "decode": [{"sequences": 1, "tpot_ms": 5.25}, {"sequences": 2, "tpot_ms": 6.0}]}
    values, decode = tables_of({"model": "m", "memory": {"kv_pool_bytes": 3 << 20}, "speed": speed})
    assert values == (("what", "value"), [("model", "m"), ("memory.kv_pool_bytes", "3 MiB")])
    assert decode.header == ("speed.decode", "sequences", "tpot_ms")
    assert decode.rows == [("", "1", "5.25"), ("", "2", "6")]
