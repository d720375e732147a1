"""The dashboard: what is sent to it, who may see it, and how it looks in a real browser."""

import asyncio
import base64
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.base.clock import now_s
from headrace.base.config import AccessConfig
from headrace.base.errors import EngineDeadError, OverloadError
from headrace.base.messages import Picture, RunningRow
from headrace.base.metrics.timeline import Part, PartName, Timeline
from headrace.engine.outputs import EngineStats, RequestOutput, Usage
from headrace.serve.pages.doctor import Doctor
from headrace.serve.pages.feed import MAX_WATCHERS, MAX_WATCHERS_OF_KEY, Feed
from tests.kit.engine import tiny_llama
from tests.serve import browser
from tests.serve.conftest import Live, serving
from tests.serve.fake import FakeLLM, LiveServer, hello

KEYED = AccessConfig(api_key=("sesame",))
HOSTILE = "<img src=x onerror=alert(1)>"
needs_browser = pytest.mark.skipif(browser.find() is None, reason="no chromium on this machine")


class Silent(FakeLLM):
    """An engine that is down."""

    async def stats(self) -> EngineStats:
        raise EngineDeadError("down")


class Shown(FakeLLM):
    """An engine with one running sequence."""

    async def stats(self) -> EngineStats:
        return EngineStats(counters={"steps": 1.0}, gauges={"running": 1.0})

    async def picture(self) -> Picture:
        row = RunningRow(
            request_id="r-1",
            slot=0,
            prompt_tokens=4,
            computed_tokens=5,
            cached_tokens=0,
            output_tokens=2,
            max_tokens=9,
            age_s=0.5,
        )
        return Picture(ask_id=0, step=7, num_slots=2, rows=(row,), blocks=bytes([0, 0, 0, 2]))


class Bound(Shown):
    """An engine whose steps read memory all the time, in half of its rows with drafts."""

    num_asked = 0

    async def stats(self) -> EngineStats:
        self.num_asked += 1
        busy = now_s()
        rates = {
            "loop_seconds": 0.99,
            "decode_steps": 10.0,
            "decode_step_tokens": 10.0,
            "decode_step_seconds": 0.98,
            "decode_memory_roof_seconds": 0.7,
            "decode_step_bytes": 7e9,
            "decode_step_operations": 14e9,
            "draft_rows": 5.0,
            "drafts_checked": 10.0,
            "drafts_accepted": 8.0,
            "draft_step_seconds": 0.5,
            "draft_plain_seconds": 0.7,
        }
        gauges = {"running": 1.0, "slots": 2.0, "limit_read_bytes": 1e10, "limit_operations": 4e11}
        return EngineStats(counters={k: v * busy for k, v in rates.items()}, gauges=gauges)


class Stuck(FakeLLM):
    """An engine in a step that does not end."""

    async def stats(self) -> EngineStats:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")


@contextmanager
def watching(url: str, **more: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """News of a server as they come."""
    with httpx.stream("GET", f"{url}/dashboard/events", timeout=10, **more) as answer:
        assert answer.status_code == 200, answer.read()
        yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def ask(url: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"prompt": [5] * 20, "max_tokens": 40, "ignore_eos": True} | more
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60, headers=headers)


def test_news_tell_of_the_engine_and_of_requests(live_server: Live) -> None:
    assert ask(live_server.url).status_code == 200
    with watching(live_server.url) as news:
        first, second = next(news), next(news)
    assert first["is_healthy"] is True
    assert first["model"] == "smollm2"
    assert second["time"] - first["time"] >= 0.9
    blocks = first["picture"]["blocks"]
    assert sum(count for _, count in blocks) == first["gauges"]["blocks_total"]
    assert first["counters"]["generated_tokens"] >= 40


def test_the_slowest_requests_are_told_by_their_ids_of_one_key() -> None:
    """On a server of its own: elsewhere eight slower ones may have been asked before."""
    key = {"authorization": "Bearer only"}
    with serving(tiny_llama(), "--api-key", "only") as live:
        assert ask(live.url, key, request_id="seen-1").status_code == 200
        with watching(live.url, headers=key) as news:
            (mine,) = next(news)["recent"]["slowest"]
        asking = threading.Thread(
            target=ask, args=(live.url, key), kwargs={"max_tokens": 170, "request_id": "seen-2"}
        )
        asking.start()
        with watching(live.url, headers=key) as news:
            rows = [row for _, told in zip(range(2), news, strict=False) for row in told["picture"]["rows"]]
        asking.join(30)
    assert mine["id"].endswith("-seen-1")
    assert (mine["prompt_tokens"], mine["output_tokens"]) == (20, 40)
    spent = {part["name"]: part["seconds"] for part in mine["parts"]}
    assert spent.keys() >= {"prefill", "decode", "host", "stream_out"}
    assert min(spent.values()) > 0
    assert {row["id"] for row in rows} <= {"cmpl-seen-2", "cmpl-seen-2-0"}


def test_running_sequences_are_shown(live_server: Live) -> None:
    thread = threading.Thread(target=ask, args=(live_server.url,), kwargs={"max_tokens": 450})
    thread.start()
    with watching(live_server.url) as news:
        first = itertools.islice((n["picture"]["rows"] for n in news), 10)
        rows = next((found for found in first if found), None)
    thread.join(30)
    assert rows is not None, "nothing ran in ten seconds"
    assert rows[0]["max_tokens"] == 450
    assert rows[0]["prompt_tokens"] == 20


def test_the_page_lets_nothing_run_but_what_it_holds() -> None:
    with LiveServer(FakeLLM(hello)) as server:
        answer = httpx.get(f"{server.url}/dashboard")
    policy = answer.headers["content-security-policy"]
    script = re.search(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", answer.text)


def test_an_engine_that_does_not_answer_is_shown_as_it_is() -> None:
    with LiveServer(Silent(hello)) as server, watching(server.url) as news:
        told = next(news)
    assert told["picture"] is None
    assert told["counters"] is None
    assert told["is_healthy"] is True


def test_the_doctor_says_what_holds_the_server_up_and_so_does_the_page() -> None:
    with LiveServer(Bound(hello)) as server:
        report = httpx.get(f"{server.url}/doctor", timeout=30).json()
        with watching(server.url) as news:
            told = next(news)
    assert report["bottleneck"] == "memory bandwidth"
    assert report["evidence"]["step_share"] == pytest.approx(0.98, rel=0.05)
    assert "--speculate" in report["findings"][0]["remedy"]
    # the page is told at once: the doctor has just looked
    assert told["doctor"]["bottleneck"] == "memory bandwidth"
    assert told["roofline"]["phases"]["decode"]["share"] == pytest.approx(7 / 9.8, rel=0.05)
    assert told["speculation"] == pytest.approx({"acceptance": 0.8, "tokens_per_row": 2.6, "speedup": 1.4})


def test_readers_of_the_doctor_share_one_look() -> None:
    engine, found = Bound(hello), list[str]()

    def look(url: str) -> None:
        found.append(httpx.get(f"{url}/doctor", timeout=30).json()["bottleneck"])

    with LiveServer(engine) as server:
        threads = [threading.Thread(target=look, args=(server.url,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["memory bandwidth"] * 8
    assert 8 <= engine.num_asked <= 8 + 6, "five looks make two seconds; each reader of eight asks once more"


@pytest.mark.parametrize("engine", [Silent, Stuck])
def test_an_engine_that_tells_nothing_is_an_error_and_not_idle(engine: type[FakeLLM]) -> None:
    with LiveServer(engine(hello)) as server:
        answer = httpx.get(f"{server.url}/doctor", timeout=30)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_unavailable"


def test_the_doctor_asks_for_the_key() -> None:
    with LiveServer(Shown(hello), access=KEYED) as server:
        assert httpx.get(f"{server.url}/doctor").status_code == 401


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/events"])
def test_a_browser_is_asked_for_the_key_and_sends_it_as_a_password(path: str) -> None:
    with LiveServer(Shown(hello), access=KEYED) as server:
        without = httpx.get(server.url + path)
        assert without.status_code == 401
        assert without.headers["www-authenticate"].startswith("Basic realm=")
        for wrong in ("no", "", "sesame "):
            assert httpx.get(server.url + path, auth=("any", wrong)).status_code == 401
        garbage = httpx.get(server.url + path, headers={"authorization": "Basic !!"})
        assert garbage.status_code == 401
        with httpx.stream("GET", server.url + path, auth=("any", "sesame")) as right:
            assert right.status_code == 200
        api = httpx.get(server.url + "/v1/models")
        assert api.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("keys", "shown"), [(("one",), "r-1"), (("one", "two"), "")])
def test_with_several_keys_no_ids_are_shown(keys: tuple[str, ...], shown: str) -> None:
    with LiveServer(Shown(hello), access=AccessConfig(api_key=keys)) as server:
        ask(server.url, headers={"authorization": "Bearer one"})
        with watching(server.url, auth=("any", "one")) as news:
            told = next(news)
    assert [row["id"] for row in told["picture"]["rows"]] == [shown]
    assert told["picture"]["blocks"] == [[0, 3], [2, 1]]


def test_watchers_are_bounded_and_leave() -> None:
    with LiveServer(Shown(hello)) as server, httpx.Client(timeout=30) as client:
        streams = [client.stream("GET", f"{server.url}/dashboard/events") for _ in range(MAX_WATCHERS)]
        answers = [stream.__enter__() for stream in streams]
        assert {answer.status_code for answer in answers} == {200}
        refused = client.get(f"{server.url}/dashboard/events")
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        streams[0].__exit__(None, None, None)
        until_watching(client, f"{server.url}/dashboard/events")
        for stream in streams[1:]:
            stream.__exit__(None, None, None)


def until_watching(client: httpx.Client, url: str, seconds: float = 10.0, **more: Any) -> None:
    """Until there is a place: who leaves is noticed a moment later."""
    end_s = now_s() + seconds
    while now_s() < end_s:
        with client.stream("GET", url, **more) as again:
            if again.status_code == 200:
                return
    pytest.fail("a place did not become free")


def test_one_of_several_keys_takes_a_part_of_the_places() -> None:
    access = AccessConfig(api_key=("one", "two"))
    with LiveServer(Shown(hello), access=access) as server, ExitStack() as open_:
        client, url = open_.enter_context(httpx.Client(timeout=10)), f"{server.url}/dashboard/events"

        def watch(key: str) -> httpx.Response:
            return open_.enter_context(client.stream("GET", url, headers={"authorization": f"Bearer {key}"}))

        assert [watch("one").status_code for _ in range(MAX_WATCHERS_OF_KEY)] == [200] * MAX_WATCHERS_OF_KEY
        refused = watch("one")
        assert refused.status_code == 429
        assert f"with this key, limit {MAX_WATCHERS_OF_KEY}" in refused.read().decode()
        assert watch("two").status_code == 200


def test_asking_for_heads_takes_no_places() -> None:
    with LiveServer(Shown(hello), access=KEYED) as server, httpx.Client(timeout=10) as client:
        url, key = f"{server.url}/dashboard/events", {"authorization": "Bearer sesame"}
        for _ in range(MAX_WATCHERS + 1):
            head = client.head(url, headers=key)
            assert head.status_code == 200
            assert head.headers["content-type"].startswith("text/event-stream")
        assert client.head(url).status_code == 401
        with watching(server.url, headers=key) as news:
            assert next(news)["model"] == "fake"


async def test_a_watcher_who_left_before_the_first_news_has_left() -> None:
    with LiveServer(Shown(hello)) as server:
        feed = Feed(server.state, Doctor(server.state), is_shared=False)
        watches = [feed.watch("") for _ in range(MAX_WATCHERS)]
        with pytest.raises(OverloadError, match=f"limit {MAX_WATCHERS}"):
            feed.watch("")
        for _ in range(2):
            await watches[0].aclose()
        feed.watch("")
        with pytest.raises(OverloadError):
            feed.watch("")
        assert [news async for news in watches[0]] == []


@needs_browser
def test_verdict_roofline_and_speculation_in_a_browser(tmp_path: Path) -> None:
    with (
        LiveServer(Bound(hello)) as server,
        browser.opened(f"{server.url}/dashboard", tmp_path) as page,
    ):
        page.size(1280, 900)
        page.until("document.getElementById('verdict').textContent === 'memory bandwidth'")
        assert "read the weights less often" in page.ask("document.getElementById('remedy').textContent")
        evidence = page.ask("document.getElementById('evidence').textContent")
        assert re.search(r"step share9[5-9] %|step share100 %", evidence), evidence
        alone = page.ask("document.getElementById('roof').getAttribute('aria-label')")
        assert re.search(r"decode: 7(\.\d)? GB/s and 14 Gop/s, 7\d % of the nearer roof", alone), alone
        assert "Roofs: 10 GB/s, 400 Gop/s" in alone
        tiles = page.ask("document.getElementById('tiles').textContent")
        assert "Drafts accepted80 %" in tiles
        assert "Tokens per row2.6" in tiles
        assert "Speculation1.4 " in tiles
        # the point is drawn: decode's colour is there, prefill's, which has no steps, is not
        page.ask("setTheme('light')")
        count = (
            "(rgb => { const c = document.getElementById('roof'), d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; let n = 0;"
            "for (let i = 0; i < d.length; i += 4) n += (d[i] << 16 | d[i + 1] << 8 | d[i + 2]) === rgb;"
            "return n })"
        )
        assert page.ask(f"{count}(0x1668a5)") > 60
        assert page.ask(f"{count}(0xa94f00)") == 0
        page.size(390, 800, mobile=True)
        assert page.ask("document.documentElement.scrollWidth") <= 390
        assert page.errors == []


@needs_browser
def test_bars_of_the_slowest_show_every_part_in_a_browser(tmp_path: Path) -> None:
    """Widths and colours of a timeline that has all parts, and of one half as long."""
    seconds = {name: 1.0 + i for i, name in enumerate(PartName)}
    with LiveServer(Shown(hello)) as server:
        for name, scale in (("long", 1.0), ("short", 0.5)):
            spent = tuple(Part(part, scale * s) for part, s in seconds.items())
            line = Timeline(request_id=name, arrival_s=0.0, until_s=1.0, is_finished=True, parts=spent)
            server.llm.timelines.keep("", line)
            output = RequestOutput(
                request_id=name,
                prompt_ids=(1,),
                choices=(),
                finished=True,
                usage=Usage(prompt_tokens=1, completion_tokens=2),
                seed=0,
                timings={"decode_s": scale},
            )
            server.state.metrics.recent.see(output, now_s())
        with browser.opened(f"{server.url}/dashboard", tmp_path) as page:
            page.size(1280, 900)
            page.until("document.querySelectorAll('#slowest svg').length === 2")
            page.ask("setTheme('light')")
            bars = page.ask(
                "[...document.querySelectorAll('#slowest svg')].map(svg => [svg.getAttribute('aria-label'),"
                "[...svg.querySelectorAll('rect')].map(r => [r.getAttribute('class').slice(2),"
                "Number(r.getAttribute('width')), getComputedStyle(r).fill, r.textContent])])"
            )
            told = page.ask("document.getElementById('slowest').textContent")
            page.size(390, 800, mobile=True)
            assert page.ask("document.documentElement.scrollWidth") <= 390
            assert page.errors == []
    total = sum(seconds.values())
    for (label, rects), scale in zip(bars, (1.0, 0.5), strict=True):
        assert [rect[0] for rect in rects] == [name.value for name in PartName]
        widths = [100 * scale * s / total for s in seconds.values()]
        assert [rect[1] for rect in rects] == pytest.approx(widths)
        assert "others prefill" in label
        assert f"others prefill {scale * seconds[PartName.OTHERS_PREFILL]:g} s" in [r[3] for r in rects]
        colours = {rect[0]: rect[2] for rect in rects}
        main = ("queue", "prefill", "decode", "draft", "others_prefill", "preempted", "host", "stream_out")
        assert len({colours[name] for name in main}) == len(main)
        assert "rgb(0, 0, 0)" not in colours.values()  # what a part without a colour would have
    assert "long66" in told


@needs_browser
def test_the_page_in_a_browser(smollm2_path: Path, tmp_path: Path) -> None:
    # A server of its own: on one that others used, eight requests may have been slower.
    flags = ("--max-num-seqs", "8", "--max-model-len", "512", "--served-model-name", "smollm2")
    with ExitStack() as opened:
        live = opened.enter_context(serving(smollm2_path, *flags))
        assert ask(live.url, request_id=HOSTILE).status_code == 200
        page = opened.enter_context(browser.opened(f"{live.url}/dashboard", tmp_path))
        page.size(1280, 900)
        page.until("document.getElementById('health').textContent === 'healthy'")
        thread = threading.Thread(target=ask, args=(live.url,), kwargs={"max_tokens": 450})
        thread.start()
        page.until("document.querySelectorAll('#rows tr').length === 1")
        thread.join()
        page.until("document.getElementById('blocks').getAttribute('aria-label').includes('free')")
        # an id is text, whatever it says
        assert HOSTILE in page.until("document.getElementById('slowest').textContent")
        assert page.ask("document.querySelectorAll('img').length") == 0
        # the drawings hold more than one colour
        drawn = (
            "(id => { const c = document.getElementById(id), d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; const s = new Set();"
            "for (let i = 0; i < d.length; i += 4) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);"
            "return s.size })"
        )
        for name in ("rate", "slots", "blocks"):
            assert page.ask(f"{drawn}('{name}')") > 1, name
        # keyboard: the theme's button is the second stop
        before = page.ask("document.documentElement.dataset.theme")
        for _ in range(2):
            page.press("Tab", 9)
        assert page.ask("document.activeElement.id") == "theme"
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
        assert page.ask("document.documentElement.dataset.theme") != before
        page.size(390, 800, mobile=True)
        assert page.ask("document.documentElement.scrollWidth") <= 390
        assert page.errors == []
        assert page.picture()[:4] == b"\x89PNG"
