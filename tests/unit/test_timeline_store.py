"""Timelines of requests that ended: bounded, by tenant, extended by what the client process adds."""

import tracemalloc
from dataclasses import replace

import httpx
import pytest

from headrace.base.errors import HeadraceError, NotFoundError
from headrace.base.ids import engine_id
from headrace.base.metrics.timeline import Differing, OthersPrefill, Part, PartName, PrefixResult, Timeline
from headrace.cli.commands.explain import LOOKS, fetch, show, widths
from headrace.engine.outputs import Usage
from headrace.engine.timelines.store import ANOTHERS, TimelineStore, begun, extended, own_view, spelled
from headrace.host.timeline.explain import explain
from headrace.serve.schema.timings import timeline_body, timings_body


def line(request_id: str = "chatcmpl-a", until_s: float = 12.0, **more) -> Timeline:
    parts = (Part(PartName.QUEUE, 0.5, "slots"), Part(PartName.DECODE, until_s - 10.5))
    known = {
        "request_id": request_id,
        "arrival_s": 10.0,
        "until_s": until_s,
        "is_finished": True,
        "parts": parts,
    }
    return Timeline(**(known | more))


def test_the_text_around_the_token_that_differs_is_told_and_only_where_there_is_one() -> None:
    differs = Differing(at=20, before=(1, 2), own=(3,), cached=(4, 5))
    prefix = PrefixResult(outcome="hit", prompt_tokens=30, cached_tokens=16, differs=differs)
    found = spelled(line(prefix=prefix), lambda ids: "".join("xabcde"[i] for i in ids))
    body = timeline_body(found)["prefix"]
    assert (body["differs_at"], body["differs"]) == (20, {"before": "ab", "own": "c", "cached": "de"})
    computed = replace(found, parts=(Part(PartName.PREFILL, 2.0),))
    assert "at token 20: after 'ab' it goes on with 'c', not with 'de'" in explain(computed)
    plain = line(prefix=replace(prefix, differs=None))
    assert spelled(plain, str) is plain
    assert timeline_body(plain)["prefix"]["differs"] is None
    assert spelled(line(), str) == line()
    assert timeline_body(line(prefix=prefix))["prefix"]["differs"] is None  # without a tokenizer


def test_the_store_is_bounded_and_forgets_the_first_that_ended() -> None:
    store = TimelineStore(2)
    for name in "abc":
        store.keep("", line(name))
    store.keep("", line("b"))
    store.keep("", line("d"))
    assert [name for name in "abcd" if store.find("", name)] == ["b", "d"]
    off = TimelineStore(0)
    off.keep("", line("a"))
    assert off.find("", "a") is None


def test_of_two_requests_of_one_name_the_first_is_not_told_for_the_second() -> None:
    store = TimelineStore(9)
    store.keep("", line("a"))
    store.keep("", line("a", others=(OthersPrefill("x", "\ud800", 0.5),)))  # cannot be packed
    assert store.find("", "a") is None


def full(i: int) -> Timeline:
    """One with every part, eight others and two prompts that differ, nothing shared with another."""
    ids = tuple(range(1000 + i, 1008 + i))
    differs = Differing(at=i, before=ids, own=ids[1:], cached=ids[2:], texts=(f"{i} a", f"{i} b", f"{i} c"))
    prefix = PrefixResult(outcome="partial", prompt_tokens=900 + i, cached_tokens=i, differs=differs)
    parts = tuple(
        Part(name, 0.25 + i, f"because of {i}" if k % 3 == 0 else "") for k, name in enumerate(PartName)
    )
    others = tuple(OthersPrefill(f"chatcmpl-{i}-{k}", "t", 0.5 + i + k) for k in range(8))
    return line(f"chatcmpl-{i}", parts=parts, prefix=prefix, others=others, output_tokens=i, drafts=(i, 1))


def test_what_is_found_is_what_was_kept() -> None:
    store = TimelineStore(9)
    store.keep("u", full(3))
    want = own_view(full(3), "u")
    assert store.find("u", "chatcmpl-3") == want
    store.sent("u", "chatcmpl-3", want.until_s + 1.5)
    assert store.find("u", "chatcmpl-3") == extended(want, want.until_s + 1.5)


def test_a_timeline_that_is_kept_takes_about_two_kilobytes() -> None:
    """As `--timelines` says; as objects they took five, and the server grew by that for its first minutes."""
    store = TimelineStore(400)
    store.keep("t", full(0))
    tracemalloc.start()
    try:
        for i in range(1, 400):
            store.keep("t", full(i))
        held = tracemalloc.get_traced_memory()[0] / 399
    finally:
        tracemalloc.stop()
    assert 500 < held < 2600


def test_a_tenant_finds_its_own_by_answer_id_or_by_name() -> None:
    store = TimelineStore(9)
    store.keep("t", line("chatcmpl-a/1"))
    for name in ("chatcmpl-a/1", "a/1"):
        found = store.find("t", name)
        assert found is not None
        assert found.request_id == "chatcmpl-a/1"
        assert store.find("u", name) is None
    assert store.find("t", "a") is None


def test_of_an_answer_to_several_prompts_the_last_to_end_is_told() -> None:
    store = TimelineStore(9)
    for n, until_s in enumerate((12.0, 15.0, 13.0)):
        store.keep("", line(f"cmpl-x-{n}", until_s), "cmpl-x")
    for name in ("cmpl-x", "x"):
        found = store.find("", name)
        assert found is not None
        assert found.request_id == "cmpl-x-1"
    store.keep("", line("cmpl-x-7-1"))
    plain = store.find("", "x-1")
    assert plain is not None
    assert plain.request_id == "cmpl-x-1"  # a plain name goes before a numbered one
    store.sent("", "cmpl-x-1", 20.0)
    again = store.find("", "x")
    assert again is not None
    assert (again.request_id, again.until_s) == ("cmpl-x-1", 20.0)


@pytest.mark.parametrize("request_id", ["chatcmpl-job-2", "cmpl-job-2", "embd-job-2"])
def test_a_name_that_ends_in_a_number_is_no_part_of_another_answer(request_id: str) -> None:
    store = TimelineStore(9)
    store.keep("", line(request_id))
    assert store.find("", "job") is None
    assert store.find("", request_id.removesuffix("-2")) is None
    assert store.find("", "job-2") is not None


def test_what_comes_before_and_after_the_engine_is_added_and_the_sum_stays_whole() -> None:
    whole = extended(begun(line(), "chatcmpl-a", 9.25), 12.25)
    assert whole.seconds_of(PartName.TOKENIZE) == 0.75
    assert whole.seconds_of(PartName.STREAM_OUT) == 0.25
    again = extended(whole, 13.0)
    assert again.seconds_of(PartName.STREAM_OUT) == 1.0
    for timeline in (whole, again):
        assert sum(p.seconds for p in timeline.parts) == pytest.approx(timeline.e2e_s)
    assert begun(line(), "a", 0.0).e2e_s == 2.0
    store = TimelineStore(9)
    store.keep("t", line())
    store.sent("t", "chatcmpl-a", 12.5)
    store.sent("t", "unknown", 12.5)
    kept = store.find("t", "a")
    assert kept is not None
    assert kept.seconds_of(PartName.STREAM_OUT) == 0.5


def test_ids_of_other_tenants_requests_do_not_show() -> None:
    store = TimelineStore(9)
    others = (OthersPrefill("secret", "u", 2.0), OthersPrefill(engine_id("t", "mine"), "t", 1.0))
    store.keep("t", line(others=others, parts=(Part(PartName.OTHERS_PREFILL, 3.0, "secret"),)))
    found = store.find("t", "a")
    assert found is not None
    body = timeline_body(found)
    assert "secret" not in str(body)
    assert body["others_prefill"] == [{"id": ANOTHERS, "seconds": 2.0}, {"id": "mine", "seconds": 1.0}]
    assert body["parts"][0]["reason"] == ANOTHERS


def test_timings_follow_the_definitions() -> None:
    timings = {"prefill_s": 0.5, "decode_s": 2.0, "queue_s": 0.1, "ttft_s": 0.6}
    usage = Usage(prompt_tokens=60, completion_tokens=10, cached_tokens=10)
    got = timings_body(timings, usage, 2, None)
    assert got == pytest.approx(
        {
            "cache_n": 10,
            "prompt_n": 50,
            "prompt_ms": 500.0,
            "prompt_per_token_ms": 10.0,
            "prompt_per_second": 100.0,
            "predicted_n": 10,
            "predicted_ms": 2000.0,
            "predicted_per_token_ms": 500.0,  # two choices of five: four gaps of half a second each
            "predicted_per_second": 4.0,
            "queue_ms": 100.0,
            "ttft_ms": 600.0,
        }
    )
    drafted = timings_body(timings | {"draft_n": 9.0, "draft_n_accepted": 4.0}, usage, 1, None)
    assert (drafted["draft_n"], drafted["draft_n_accepted"]) == (9, 4)
    single = timings_body(timings, Usage(prompt_tokens=1, completion_tokens=1), 1, line())
    assert single["predicted_per_token_ms"] is None
    assert single["e2e_s"] == 2.0


def test_the_bar_is_as_wide_as_asked_and_every_part_has_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"name": "queue", "seconds": s, "reason": ""} for s in (0.3333, 0.3333, 0.3334, 1e-9)]
    assert widths(parts, 10) == [3, 4, 3, 0]
    assert sum(widths(parts, 97)) == 97
    assert widths([], 9) == []
    assert widths([{"name": "queue", "seconds": 0.0, "reason": ""}], 9) == [0]
    assert set(LOOKS) == set(PartName)
    show(timeline_body(line()))
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].count("Q") == 25
    assert shown.splitlines()[0].count("D") == 75
    assert "\x1b" not in shown
    assert "queue" in shown
    assert "slots" in shown
    assert "an answer half as long" in shown


@pytest.mark.parametrize(
    ("status", "body", "kind", "word"),
    [
        (404, {"error": {"message": "no request"}}, NotFoundError, "no request"),
        (404, {"detail": "Not Found"}, NotFoundError, "404"),
        (500, {"error": "text"}, HeadraceError, "text"),
        (500, {"error": {"message": 5}}, HeadraceError, "500"),
        (500, ["text"], HeadraceError, "500"),
        (200, ["text"], HeadraceError, "--url"),
        (200, {"object": "list"}, HeadraceError, "--url"),
        (200, {"parts": 1, "sentence": "It took 1 s."}, HeadraceError, "--url"),
        (200, {"parts": [{"name": "queue"}], "sentence": "It took 1 s."}, HeadraceError, "--url"),
    ],
)
def test_what_is_no_answer_of_headrace_is_said(
    monkeypatch: pytest.MonkeyPatch, status: int, body: object, kind: type[HeadraceError], word: str
) -> None:
    monkeypatch.setattr(httpx, "get", lambda *_args, **_more: httpx.Response(status, json=body))
    with pytest.raises(HeadraceError, match=word) as caught:
        fetch("http://127.0.0.1:1", "x", None)
    assert type(caught.value) is kind


def test_a_timeline_that_is_fetched_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = timeline_body(line())
    monkeypatch.setattr(httpx, "get", lambda *_args, **_more: httpx.Response(200, json=whole))
    assert fetch("http://127.0.0.1:1", "x", None) == whole
