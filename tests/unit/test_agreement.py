"""The comparison with another load tool: what is recorded, replayed and compared."""

import asyncio
import json

import pytest

from benchmarks import agreement
from benchmarks.agreement import Asked, Row, compared, has_text, joined, largest, markdown, record, replay
from benchmarks.peers.servers import free_port
from headrace.tools.bench.ask import Wish
from headrace.tools.bench.wire import Client, Target
from tests.kit.virtual import Scripted, run, stream, usage

WISH = Wish("m", is_chat=False, extra={"ignore_eos": True})


def chunk(text, reason=None):
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})


USAGE = json.dumps({"choices": [], "usage": usage(3, 2)["usage"]})


def test_events_are_told_by_whether_their_choice_has_text():
    assert [has_text(data) for data in (chunk("a"), chunk("", "length"), USAGE, "[DONE]")] == [
        True,
        False,
        None,
        None,
    ]


def test_an_event_without_text_joins_the_one_before_and_takes_no_moment():
    events = [
        (0.5, chunk("a")),
        (1.0, chunk("b")),
        (1.25, chunk("", "length")),
        (1.5, USAGE),
        (1.5, "[DONE]"),
    ]
    found = joined(events)
    assert [at for at, _ in found] == [0.5, 1.0, 1.5, 1.5]
    assert json.loads(found[1][1])["choices"][0] == {"index": 0, "text": "b", "finish_reason": "length"}
    assert found[2:] == events[3:]
    assert joined(found) == found


def test_a_stream_is_recorded_as_it_came():
    server = Scripted(lambda *_: stream([0.5, 1.5], usage(3, 2), 1.75))
    found = run(record(server.client(), WISH, Asked(["p", "q", "r"], 2, 2)))
    assert server.came_s == [0.0, 0.0, 1.75]
    assert {body["prompt"] for body in server.bodies} == set(found) == {"p", "q", "r"}
    assert all(body["max_tokens"] == 2 and body["ignore_eos"] for body in server.bodies)
    assert all([at for at, _ in events] == [0.0, 0.5, 1.5, 1.75, 1.75] for events in found.values())
    assert all(events[-1][1] == "[DONE]" for events in found.values())


def test_a_replay_sends_the_recorded_events_of_each_prompt_and_keeps_connections():
    streams = {
        "p": [(0.0, chunk("a")), (0.02, chunk("b", "length")), (0.02, "[DONE]")],
        "q": [(0.0, chunk("z", "length")), (0.0, "[DONE]")],
    }
    port = free_port()

    async def both():
        server = asyncio.create_task(replay(port, "m", streams))
        client = Client(Target("127.0.0.1", port))
        for _ in range(200):
            try:
                listing = await client.get("/v1/models")
                break
            except OSError:
                await asyncio.sleep(0.01)
        clock = asyncio.get_running_loop().time
        found = {}
        for prompt in ("p", "q", "unknown"):
            began = clock()
            events = client.events(agreement.PATH, WISH.body([{"content": prompt}], 2))
            found[prompt] = [(clock() - began, data.decode()) async for data in events]
        server.cancel()
        return listing, found

    listing, found = asyncio.run(both())
    assert listing["data"][0]["id"] == "m"
    for prompt, name in (("p", "p"), ("q", "q"), ("unknown", "p")):
        assert [data for _, data in found[prompt]] == [data for _, data in streams[name]]
    assert found["p"][1][0] >= 0.02


def figures(scale=1.0, gap=20.0):
    spread = {"mean": 10.0, "p50": gap, "p90": 30.0, "p99": 40.0}
    ours = {"seconds": 4.0, "rates": dict.fromkeys(agreement.RATES, 2.0)}
    ours |= {f"{name}_ms": spread for name in agreement.LATENCIES}
    theirs = {"duration": 4.0 * scale} | dict.fromkeys(agreement.RATES.values(), 2.0)
    for name in agreement.LATENCIES:
        theirs |= {f"mean_{name}_ms": 10.0, f"median_{name}_ms": 20.0}
        theirs |= {f"p90_{name}_ms": 30.0, f"p99_{name}_ms": 40.0}
    return compared(ours, theirs)


def test_twenty_figures_are_compared_and_the_largest_difference_is_told():
    rows = figures()
    assert len(rows) == 20
    assert {row.difference for row in rows} == {0.0}
    assert largest(figures(scale=0.8)).name == "duration (s)"
    assert largest(figures(scale=0.8)).difference == pytest.approx(0.25)
    assert {row.name for row in figures(gap=21.0) if row.difference} == {
        f"{name} p50 (ms)" for name in agreement.LATENCIES
    }
    assert "| ttft p50 (ms) | 21.000 | 20.000 | +5.00% | +0.00% |" in markdown(figures(gap=21.0), rows)
    assert Row("x", 1.0, 0.0).difference == float("inf")
