"""`headrace bench` in virtual time: every figure equals the one computed by hand (OP-6)."""

import asyncio
import itertools
import math
import random
import statistics

import pytest

from headrace.base.errors import RequestError
from headrace.base.metrics import Slo
from headrace.tools.bench.arrivals import Arrivals
from headrace.tools.bench.ask import Failure, Wish, ask
from headrace.tools.bench.bootstrap import NO_DIFFERENCE, interval
from headrace.tools.bench.compare import Side, compare
from headrace.tools.bench.datasets.choose import DatasetChoice
from headrace.tools.bench.datasets.talk import Talk, Turn
from headrace.tools.bench.drive import Load, closed_loop, open_loop
from headrace.tools.bench.ramp import ramp
from headrace.tools.bench.run import Plan, first_model, measure, warm_up
from headrace.tools.bench.slo import parse_slo
from headrace.tools.bench.summary import Spread, latency_of, summarize
from headrace.tools.bench.wire import Client, Target
from tests.kit.virtual import OK, Script, Scripted, chunk, delta, event, run, status, stream, usage

WISH = Wish("m", timeout_s=100.0)


def talks(count: int, turns: int = 1) -> list[Talk]:
    return [
        Talk(tuple(Turn(({"role": "user", "content": f"q{i}.{t}"},), 9) for t in range(turns)))
        for i in range(count)
    ]


def one(script: Script):
    return run(ask(Scripted(lambda *_: script).client(), WISH.path, {}, 100.0, 0.0))


def spread_of(*values: float) -> Spread:
    """By other code than the product's: numpy's percentiles."""
    import numpy as np

    shares = [float(np.percentile(values, p)) for p in (50, 90, 95, 99)]
    mean, std = statistics.fmean(values), statistics.pstdev(values)
    return Spread(len(values), mean, std, min(values), *shares, max=max(values))


def test_a_request_is_timed_by_its_events_and_counted_by_usage():
    outcome = one(stream([0.5, 1.0, 2.0], usage(20, 9, 16), 2.25))
    assert (outcome.stamps_s, outcome.end_s, outcome.failure) == ([0.5, 1.0, 2.0], 2.25, None)
    counts = outcome.counts
    assert (counts.prompt, counts.output, counts.cached, counts.is_reported) == (20, 9, 16, True)
    assert outcome.text == "w1 w2 w3 "


def test_events_without_text_are_no_tokens_and_hidden_reasoning_is():
    parts = [(0.0, OK), (0.25, event(delta(""))), (0.5, event(delta(None, reasoning_content="hm")))]
    parts += [(1.0, event(delta("yes"))), (1.5, event(delta(None, tool_calls=[{"index": 0}])))]
    parts += [(1.75, event(delta("", "stop")) + event(usage(1, 3)) + event(b"[DONE]"))]
    outcome = one(Script(parts, 2.0))
    assert outcome.stamps_s == [0.5, 1.0, 1.5]
    assert (outcome.text, outcome.failure) == ("yes", None)


def test_without_usage_events_are_counted_and_the_summary_says_so():
    outcome = one(stream([0.5, 1.0], None, 1.0))
    assert (outcome.counts.output, outcome.counts.is_reported) == (2, False)
    assert "no usage" in summarize(Load([outcome], 0.0, 1.0)).warnings[0]


CUT = stream([0.5, 1.0], usage(1, 2), 1.0).parts[:3]


@pytest.mark.parametrize(
    ("script", "failure", "word"),
    [
        (status(429, "slow down"), Failure.OVERLOADED, "slow down"),
        (status(503), Failure.OVERLOADED, "503"),
        (status(400, "no such field"), Failure.REFUSED, "no such field"),
        (status(500), Failure.REFUSED, "500"),
        (Script(CUT, 2.0), Failure.CUT, "within the answer"),
        (Script([(0.0, OK), *CUT[1:], (1.0, chunk(b""))], 1.0), Failure.CUT, "finish reason"),
        (
            Script([(0.25, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: ")], 1.0),
            Failure.CUT,
            "missing",
        ),
        (Script([(0.25, b"SSH-2.0-x\r\n")], 1.0), Failure.CUT, "HTTP/1.1"),
        (Script([(0.25, OK + b"zz\r\n")], 1.0), Failure.CUT, "chunk"),
        (Script([*CUT, (0.75, event({"error": {"message": "boom"}}))], 2.0), Failure.ERROR, "boom"),
        (Script([(0.0, OK), (0.5, event(b"{nonsense"))], 2.0), Failure.ERROR, "JSON"),
        (Script([(0.0, OK), (0.5, event(b"[1]"))], 2.0), Failure.ERROR, "object"),
        (Script([(0.0, OK), (0.5, event({"choices": 1}))], 2.0), Failure.ERROR, "no list"),
        (Script([(0.0, OK), (0.5, event({"choices": [2]}))], 2.0), Failure.ERROR, "no object"),
        (Script([(0.0, OK), (0.5, event({"usage": [1]}))], 2.0), Failure.ERROR, "no object"),
        (
            Script([(0.0, OK), (0.5, event({"usage": {"prompt_tokens": [1]}}))], 2.0),
            Failure.ERROR,
            "whole number",
        ),
        (stream([], usage(1, 0), 1.0), Failure.EMPTY, "no token"),
        (stream([0.5, 200.0], usage(1, 2), 200.0), Failure.TIMEOUT, "100 s"),
        (Script([(0.0, b"")], 0.5), Failure.CUT, "within the answer"),
    ],
)
def test_a_failed_request_says_how_it_failed(script, failure, word):
    outcome = one(script)
    assert outcome.failure is failure
    assert word in outcome.detail


def test_no_connection_is_a_failure_too():
    async def refuse(target):
        raise ConnectionRefusedError(111, "refused")

    outcome = run(ask(Client(Target("x", 1), refuse), WISH.path, {}, 1.0, 0.0))
    assert outcome.failure is Failure.CONNECTION


def test_bodies_of_any_transfer_coding_and_events_cut_anywhere():
    text = b"".join(
        b"data: " + part + b"\r\n\r\n"
        for part in (b'{"choices":[{"text":"a"}]}', b'{"choices":[{"text":"b","finish_reason":"stop"}]}')
    )
    head = b"HTTP/1.1 200 OK\r\n"
    by_length = head + b"Content-Length: %d\r\n\r\n" % len(text) + text
    by_end = head + b"\r\n" + text
    by_chunks = head + b"Transfer-Encoding: chunked\r\n\r\n"
    by_chunks += b"".join(chunk(text[i : i + 7]) for i in range(0, len(text), 7)) + chunk(b"")
    for data in (by_length, by_end, by_chunks):
        whole = one(Script([(0.5, data)], 1.0))
        bytewise = one(Script([(0.5 + i / 1024, data[i : i + 1]) for i in range(len(data))], 2.0))
        assert (whole.text, bytewise.text) == ("ab", "ab")
        assert whole.failure is bytewise.failure is None
        assert whole.stamps_s == [0.5, 0.5]


def test_the_request_carries_what_was_asked():
    server = Scripted(lambda *_: stream([0.5], usage(1, 1), 0.5))
    client = Client(Target.from_url("https://h.example:81/api/v1/", "key"), server.connect)
    wish = Wish("m", is_chat=False, extra={"ignore_eos": True})
    body = wish.body([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], 7)
    run(ask(client, wish.path, body, 1.0, 0.0))
    assert server.bodies[0] == {
        "model": "m",
        "prompt": "s\n\nu",
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    lines = server.heads[0].split("\r\n")
    assert lines[0] == "POST /api/v1/completions HTTP/1.1"
    assert {"Host: h.example:81", "Authorization: Bearer key"} <= set(lines)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://a", ("a", 80, False, "")),
        ("a:8000", ("a", 8000, False, "")),
        ("https://a/v1", ("a", 443, True, "")),
        ("http://[::1]:9/x/", ("::1", 9, False, "/x")),
    ],
)
def test_urls(url, found):
    target = Target.from_url(url)
    assert (target.host, target.port, target.is_tls, target.prefix) == found


@pytest.mark.parametrize(
    ("url", "key"), [("ftp://a", None), ("http://a:x", None), ("http://", None), ("a", "k\n")]
)
def test_urls_and_keys_that_cannot_be_used(url, key):
    with pytest.raises(RequestError):
        Target.from_url(url, key)


def mixed(body, number):
    """Ten requests: eight with three tokens an event, one turned away, one cut."""
    if number == 3:
        return status(429)
    if number == 6:
        return Script(CUT, 1.0)
    return stream([0.5, 1.0, 2.0], usage(10, 9, 4), 2.0)


def test_every_figure_of_a_mixed_load_equals_the_hand_computed_value():
    server = Scripted(mixed)
    load = run(closed_loop(server.client(), WISH, talks(10), 1))
    found = summarize(load, Slo(ttft_s=0.5, tpot_s=0.1875))
    # 8 whole requests of 2 s, one refused after 0.25 s, one cut after 1 s, one after the other.
    assert found.seconds == load.seconds == 8 * 2.0 + 0.25 + 1.0
    assert (found.sent, found.completed, found.failures) == (10, 8, {"cut": 1, "overloaded": 1})
    assert found.latencies["ttft"] == spread_of(*[0.5] * 8)
    assert found.latencies["tpot"] == spread_of(*[1.5 / 8] * 8)
    assert found.latencies["itl"] == spread_of(*[0.5, 1.0] * 8)  # the first token is no gap
    assert found.latencies["e2el"] == spread_of(*[2.0] * 8)
    assert found.latencies["client_lag"] == spread_of(*[0.0] * 10)
    assert found.tokens.prompt == 80
    assert (found.tokens.output, found.tokens.cached, found.tokens.per_event) == (72, 32, 3.0)
    assert found.rates.requests == 8 / 17.25
    assert found.rates.output_tokens == 72 / 17.25
    assert found.rates.total_tokens == 152 / 17.25
    assert found.rates.good_requests == 8 / 17.25  # the bounds themselves are within
    assert found.rates.good_share == 0.8
    assert any("2 of 10 requests failed" in w for w in found.warnings)
    assert any("3.00 tokens" in w for w in found.warnings)
    tighter = summarize(load, Slo(tpot_s=0.18))
    assert (tighter.rates.good_requests, tighter.rates.good_share) == (0.0, 0.0)


def test_a_load_in_which_all_fails_has_no_latencies():
    load = run(closed_loop(Scripted(lambda *_: status(429)).client(), WISH, talks(3), 3))
    found = summarize(load, Slo(ttft_s=1.0))
    assert set(found.latencies) == {"client_lag", "loop_lag"}
    assert (found.rates.requests, found.rates.good_share, found.tokens.per_event) == (0.0, 0.0, None)


def test_a_closed_loop_keeps_its_users_busy():
    lengths = [4.0, 1.0, 1.0, 1.0, 1.0]
    server = Scripted(lambda _, number: stream([0.5], usage(1, 1), lengths[number]))
    load = run(closed_loop(server.client(), WISH, talks(5), 2))
    assert server.came_s == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert load.seconds == 4.0
    assert [o.due_s for o in load.outcomes] == server.came_s


def test_an_open_loop_sends_on_time_whatever_is_under_way():
    server = Scripted(lambda *_: stream([5.0], usage(1, 1), 6.0))
    load = run(open_loop(server.client(), WISH, talks(4), [0.0, 0.25, 0.25, 1.5]))
    assert server.came_s == [0.0, 0.25, 0.25, 1.5]
    assert load.seconds == 7.5


def test_latency_counts_from_when_a_request_was_due():
    """A client that is late by 1 s: TTFT holds that second, the lag is reported, and a warning says so."""
    server = Scripted(lambda *_: stream([0.5], usage(1, 1), 0.5))

    async def late():
        loop = asyncio.get_running_loop()
        loop.call_at(1.75, lambda: setattr(loop, "now", loop.now + 1.0))  # busy from 1.75 to 2.75
        return await open_loop(server.client(), WISH, talks(2), [0.0, 2.0])

    found = summarize(run(late()))
    assert found.latencies["ttft"].max == 1.25
    assert found.latencies["client_lag"].max == 0.75
    assert found.latencies["loop_lag"].max > 0.9
    assert sum("bottleneck" in w for w in found.warnings) == 1


def test_turns_wait_for_the_answer_and_carry_it():
    server = Scripted(lambda *_: stream([0.5, 1.0], usage(1, 2), 1.25))
    load = run(open_loop(server.client(), WISH, talks(1, turns=3), [2.0]))
    assert server.came_s == [2.0, 3.25, 4.5]
    assert [o.tag for o in load.outcomes] == ["turn 1", "turn 2", "turn 3"]
    assert {latency_of(o).ttft_s for o in load.outcomes} == {0.5}  # each turn is due when it can be sent
    roles = [(m["role"], m["content"]) for m in server.bodies[2]["messages"]]
    answer = ("assistant", "w1 w2 ")
    assert roles == [("user", "q0.0"), answer, ("user", "q0.1"), answer, ("user", "q0.2")]


def test_a_talk_ends_with_its_first_failure():
    server = Scripted(lambda _, number: status(500) if number == 1 else stream([0.5], usage(1, 1), 0.5))
    load = run(closed_loop(server.client(), WISH, talks(1, turns=4), 1))
    assert [o.failure for o in load.outcomes] == [None, Failure.REFUSED]


# ---- when ----


def test_poisson_times_are_those_of_their_seed():
    rng, at, wanted = random.Random(7), 0.0, []
    for _ in range(100):
        wanted.append(at)
        at += rng.expovariate(4.0)
    assert Arrivals(4.0, seed=7).times(100) == wanted
    assert Arrivals(4.0, seed=8).times(100) != wanted
    many = Arrivals(4.0, seed=1).times(20_001)
    gaps = [b - a for a, b in itertools.pairwise(many)]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.03)  # as long as the mean: exponential


def test_constant_times_bursts_and_all_at_once():
    assert Arrivals(4.0, "constant").times(4) == [0.0, 0.25, 0.5, 0.75]
    assert Arrivals(4.0, "bursts", burst_size=2).times(5) == [0.0, 0.0, 0.5, 0.5, 1.0]
    assert Arrivals(math.inf).times(3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("wrong", [(0.0,), (-1.0,), (math.nan,), (1.0, "normal"), (1.0, "bursts", 0)])
def test_arrivals_out_of_range_are_refused(wrong):
    with pytest.raises(RequestError, match="--"):
        Arrivals(*wrong)


@pytest.mark.parametrize("ways", [{}, {"users": 1, "speed": 1.0}, {"users": 0}, {"users": 1, "warmup": -1}])
def test_a_plan_has_one_way_to_send(ways):
    with pytest.raises(RequestError, match="--"):
        Plan(**ways)


def test_objectives_are_read_with_units():
    assert parse_slo("ttft=500ms, tpot=0.05s,e2el=10s") == Slo(ttft_s=0.5, tpot_s=0.05, e2el_s=10.0)
    assert parse_slo("itl=200ms") == Slo(itl_s=0.2)
    assert parse_slo("") is None


@pytest.mark.parametrize(
    "text", ["ttft=500", "ttft", "gap=5ms", "ttft=0ms", "ttft=-1s", "ttft=infs", "ttft=1s,ttft=2s"]
)
def test_objectives_that_make_no_sense_are_refused(text):
    with pytest.raises(RequestError, match="--slo"):
        parse_slo(text)


# ---- a whole plan ----


def plan(**more) -> Plan:
    data = DatasetChoice(num_talks=more.pop("num_talks", 8), input_tokens=8, output_tokens=4)
    return Plan(dataset=data, **more)


def test_a_plan_is_sent_as_it_says():
    server = Scripted(lambda *_: stream([0.5, 1.0], usage(8, 4), 1.0))
    load = run(measure(server.client(), WISH, plan(arrivals=Arrivals(2.0, "constant"))))
    assert server.came_s == [i / 2 for i in range(8)]
    assert {body["max_tokens"] for body in server.bodies} == {4}
    assert len({body["messages"][0]["content"] for body in server.bodies}) == 8
    assert load.seconds == 4.5


def test_a_server_that_refuses_the_warm_up_is_not_measured():
    server = Scripted(lambda *_: status(400, "unknown field ignore_eos"))
    with pytest.raises(RequestError, match="--no-ignore-eos"):
        run(warm_up(server.client(), WISH, 2))


def test_the_model_is_asked_for():
    listing = b'{"data": [{"id": "served"}, {"id": "other"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listing)
    assert run(first_model(Scripted(lambda *_: Script([(0.5, head + listing)], 1.0)).client())) == "served"
    nothing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with pytest.raises(RequestError, match="--model"):
        run(first_model(Scripted(lambda *_: Script([(0.5, nothing)], 1.0)).client()))
    with pytest.raises(RequestError, match="is the server up"):
        run(first_model(Scripted(lambda *_: status(404)).client()))


# ---- ramp ----


class Queue:
    """A server with one worker: each request takes 0.25 s of it, in order of arrival."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def __call__(self, body, number):
        now = asyncio.get_running_loop().time()
        self.free_s = max(now, self.free_s) + 0.25
        wait = self.free_s - now
        return stream([wait], usage(8, 4), wait)


def test_a_ramp_finds_the_rate_at_which_a_queue_grows():
    """One worker at 0.25 s a request serves 4 a second: 1, 1.5, 2.25, 3.375 hold, 5.0625 does not."""
    constant = Arrivals(1.0, "constant")
    found = run(ramp(Scripted(Queue()).client(), WISH, plan(arrivals=constant, num_talks=64)))
    assert [s.level for s in found.steps] == [1.0, 1.5, 2.25, 3.375, 5.0625]
    assert [bool(s.reason) for s in found.steps] == [False] * 4 + [True]
    assert found.steps[-1].completion_rate == pytest.approx(4.0)
    assert found.sustained is found.steps[3]
    assert "5.06 requests/s came, 4 were completed" in found.steps[-1].reason


def test_a_long_but_constant_latency_is_no_saturation():
    server = Scripted(lambda *_: stream([50.0], usage(1, 1), 50.0))
    found = run(ramp(server.client(), WISH, plan(arrivals=Arrivals(1.0, "constant"))))
    assert not found.is_saturated
    assert len(found.steps) == 16


def test_a_ramp_of_users_ends_where_more_users_bring_nothing():
    found = run(ramp(Scripted(Queue()).client(), WISH, plan(users=1)))
    assert [(s.level, bool(s.reason)) for s in found.steps] == [(1, False), (2, True)]


def test_a_ramp_holds_objectives_and_stops_at_refusals():
    slow = Scripted(lambda body, number: stream([1.0], usage(1, 1), 1.0) if number < 16 else status(429))
    held = run(ramp(slow.client(), WISH, plan(users=1, slo=Slo(ttft_s=0.5))))
    assert held.sustained is None
    assert "8 of 8 requests failed" in held.steps[-1].reason


@pytest.mark.parametrize("way", [{"speed": 1.0}, {"arrivals": Arrivals(math.inf)}])
def test_what_cannot_be_raised_is_refused(way):
    with pytest.raises(RequestError, match="--ramp"):
        run(ramp(Scripted(Queue()).client(), WISH, plan(**way)))


# ---- compare ----


def test_an_interval_of_known_ratios():
    same = interval([1.25] * 6)
    assert (same.ratio, same.low, same.high) == pytest.approx((1.25, 1.25, 1.25))
    assert same.verdict() == "B is better by 25.0%"
    assert interval([1.0] * 6).verdict() == NO_DIFFERENCE
    wide = interval([0.5, 2.0, 0.8, 1.25, 0.9, 1 / 0.9])
    assert wide.ratio == pytest.approx(1.0)
    assert wide.low < 1 < wide.high
    assert wide.low == pytest.approx(1 / wide.high, rel=0.02)  # symmetric ratios, symmetric interval
    assert 0.5 < wide.low < wide.high < 2.0
    assert interval([0.8, 0.79, 0.81, 0.8, 0.8]).verdict() == "B is worse by 20.0%"


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Pairs of equal servers with 10 % noise: at most 1 in 10 shows a difference; one of 30 % is found."""
    rng = random.Random(3)
    shown = found = 0
    for _ in range(60):
        noise = [math.exp(rng.gauss(0.0, 0.1)) for _ in range(6)]
        shown += interval(noise).is_shown
        found += interval([1.3 * n for n in noise]).is_shown
    assert shown <= 60 / 10
    assert found >= 0.95 * 60


def test_an_interval_of_few_pairs_is_as_wide_as_students():
    """Student's t of six log-ratios: 2.571 standard errors; the plain percentile bootstrap has 1.79."""
    logs = [-0.09, -0.05, -0.01, 0.02, 0.05, 0.11]
    found = interval([math.exp(x) for x in logs])
    error = statistics.stdev(logs) / math.sqrt(6)
    half = (math.log(found.high) - math.log(found.low)) / 2
    assert half == pytest.approx(2.571 * error, rel=0.08)


@pytest.mark.parametrize("ratios", [[1.0] * 4, [1.0] * 5 + [0.0], [1.0] * 5 + [math.inf]])
def test_ratios_that_have_no_interval_are_refused(ratios):
    with pytest.raises(RequestError):
        interval(ratios)


def paced(pace: float, log: list[str], name: str) -> Side:
    def script(body, number):
        log.append(name + body["messages"][0]["content"][:12])
        return stream([0.5 * pace, 1.5 * pace], usage(8, 4), 1.5 * pace)

    return Side(Scripted(script).client(), WISH)


def test_pairs_are_interleaved_ask_the_same_and_show_what_differs():
    log: list[str] = []
    done = run(compare(paced(1.0, log, "A"), paced(0.5, log, "B"), plan(users=2, num_talks=4), 6))
    halves = [log[i : i + 4] for i in range(0, len(log), 4)]
    assert "".join(half[0][0] for half in halves) == "ABBAABBAABBA"
    for a, b in zip(halves[::2], halves[1::2], strict=True):
        assert sorted(x[1:] for x in a) == sorted(x[1:] for x in b)
    assert len({half[0][1:] for half in halves}) == 6  # each pair has texts of its own
    by_title = {row.title: row for row in done.figures}
    assert by_title["output (tok/s)"].interval.ratio == pytest.approx(2.0)
    ttft = by_title["TTFT p50 (ms)"]
    assert (ttft.a, ttft.b, ttft.interval.verdict()) == (500.0, 250.0, "B is better by 100.0%")
    assert by_title["TPOT p50 (ms)"].a == pytest.approx(1000 / 3)
    assert "goodput (requests/s)" not in by_title


def test_every_figure_of_a_comparison_equals_the_hand_computed_value():
    """4 requests of 4 tokens by 2 users: A takes 1.5 s each (first token at 0.5 s), B half; 8 tokens in."""
    done = run(
        compare(paced(1.0, [], "A"), paced(0.5, [], "B"), plan(users=2, num_talks=4, slo=Slo(ttft_s=0.6)), 5)
    )
    half = dict.fromkeys(("requests/s", "goodput (requests/s)"), (4 / 3, 4 / 1.5))
    half |= {"output (tok/s)": (16 / 3, 16 / 1.5)}
    half |= {"TTFT p50 (ms)": (500, 250), "TTFT p99 (ms)": (500, 250), "TPOT p50 (ms)": (1000 / 3, 500 / 3)}
    half |= {"ITL p99 (ms)": (1000, 500), "E2EL p50 (ms)": (1500, 750)}
    found = {row.title: row for row in done.figures}
    for title, values in half.items():
        assert (found[title].a, found[title].b) == pytest.approx(values, rel=1e-12)
        assert found[title].interval.ratio == pytest.approx(2.0, rel=1e-12)
    assert set(found) == set(half)


def test_equal_servers_show_no_difference():
    done = run(compare(paced(1.0, [], "A"), paced(1.0, [], "B"), plan(users=2, num_talks=4), 5))
    assert {row.interval.verdict() for row in done.figures} == {NO_DIFFERENCE}


def test_a_side_that_completes_nothing_ends_the_comparison():
    broken = Side(Scripted(lambda *_: status(500)).client(), WISH)
    with pytest.raises(RequestError, match="B completed none of 4 requests"):
        run(compare(paced(1.0, [], "A"), broken, plan(users=2, num_talks=4), 5))
    with pytest.raises(RequestError, match="--pairs"):
        run(compare(broken, broken, plan(users=2), 4))
