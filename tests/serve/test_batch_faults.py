"""Batches when something around them fails: engine, server, disk, key, room for results."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.config import AccessConfig, BatchConfig, EngineConfig
from headrace.base.errors import EngineDeadError, HeadraceError, OverloadError
from headrace.engine.async_llm import AsyncLLM
from headrace.serve.app import build_app
from headrace.serve.batches import call as call_module
from headrace.serve.batches import worker as worker_module
from headrace.serve.batches.call import MOST_OUTAGES
from headrace.serve.batches.lines import find_lines, line_at
from headrace.serve.batches.store import Store
from headrace.serve.batches.worker import MOST_OWNERS, Worker
from headrace.serve.faults import DrainingError
from headrace.serve.front.keys import load_keys
from tests.serve.batch_kit import CONFIG, border, deaths, scripted, submit, until
from tests.serve.fake import FakeLLM, hello

GOOD = (200, {"choices": []})


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "AGAIN_S", 0.001)
    monkeypatch.setattr(worker_module, "PAUSE_S", 0.001)


class Door:
    """Says whether requests are taken, and counts who asks."""

    def __init__(self, fault: HeadraceError | None) -> None:
        self.fault = fault
        self.asked = 0

    def __call__(self) -> None:
        self.asked += 1
        if self.fault is not None:
            raise self.fault


@pytest.mark.parametrize("fault", [DrainingError("stopping"), EngineDeadError("being started again")])
async def test_a_line_waits_while_no_request_is_taken(tmp_path: Path, fault: HeadraceError) -> None:
    store, door = Store(tmp_path, CONFIG), Door(fault)
    batch = submit(store, 2)
    worker = Worker(scripted([GOOD]), store, CONFIG, border(admit=door, num_restarts=deaths()))
    worker.wake()
    await until(lambda: door.asked > 3 * MOST_OUTAGES)
    assert store.get("batch", batch["id"], "me")["status"] == "in_progress"
    assert not list(store.done_lines(batch["id"], ".err"))
    await worker.close()  # the server ends before: the batch stays open, and goes on at the next start
    assert store.get("batch", batch["id"], "me")["status"] == "in_progress"
    door.fault = None
    again = Worker(scripted([GOOD]), Store(tmp_path, CONFIG), CONFIG, border(admit=door))
    again.wake()
    await until(lambda: store.get("batch", batch["id"], "me")["status"] == "completed")
    await again.close()
    assert store.get("batch", batch["id"], "me")["request_counts"] == {"completed": 2, "failed": 0}


@pytest.mark.parametrize("code", ["engine_unavailable", "shutting_down"])
async def test_a_refusal_by_a_living_engine_is_no_outage(tmp_path: Path, code: str) -> None:
    refused = (503, {"error": {"code": code}})
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 1)
    script = [refused] * (3 * MOST_OUTAGES) + [GOOD]
    await Worker(scripted(script), store, CONFIG, border())._run_batch(batch)
    assert batch["request_counts"] == {"completed": 1, "failed": 0}


async def test_a_line_that_the_engine_dies_of_fails_when_it_is_not_back_yet(tmp_path: Path) -> None:
    """Alive when the line is given, gone when the answer comes."""
    store, looks = Store(tmp_path, CONFIG), [0]

    def admit() -> None:
        looks[0] += 1
        if looks[0] % 2 == 0:
            raise EngineDeadError("gone")

    batch = submit(store, 1)
    gone = (503, {"error": {"code": "engine_unavailable"}})
    await Worker(scripted([gone]), store, CONFIG, border(admit=admit))._run_batch(batch)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"completed": 0, "failed": 1})


async def test_a_line_comes_again_when_it_was_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, slept = Store(tmp_path, CONFIG), list[float]()

    async def sleep(seconds: float, _: Any = None) -> None:
        slept.append(seconds)

    monkeypatch.setattr(call_module.asyncio, "sleep", sleep)
    for told, least in ((b"7", 7.0), (b"100000", 60.0), (b"Fri, 01 Jan", 0.0)):
        slept.clear()
        script = [(429, {"error": {}}, (b"retry-after", told)), GOOD]
        batch = submit(store, 1)
        await Worker(scripted(script), store, CONFIG, border())._run_batch(batch)
        assert batch["request_counts"]["completed"] == 1
        assert least <= sum(slept) < least + 1


async def test_results_beyond_their_room_end_the_batch_and_keep_what_is_done(tmp_path: Path) -> None:
    config = BatchConfig(max_lines_running=1, max_bytes=4000, key_share=0.5)
    store = Store(tmp_path, config)
    batch = submit(store, 8)
    large = (200, {"choices": [], "text": "x" * 500})
    await Worker(scripted([large]), store, config, border())._run_batch(batch)
    ended = store.get("batch", batch["id"], "me")
    assert ended["status"] == "failed"
    assert "results of this key have" in ended["errors"]["data"][0]["message"]
    assert "limit 2000; delete files of results" in ended["errors"]["data"][0]["message"]
    assert ended["request_counts"] == {"completed": 2, "failed": 0}
    content = store.content(ended["output_file_id"])
    assert [json.loads(t)["custom_id"] for t in content.splitlines()] == ["c0", "c1"]
    assert len(content) <= 2000
    store.delete_file(ended["output_file_id"])
    store.append(batch["id"], ".out", b"x" * 1900, "me")  # there is room again
    with pytest.raises(OverloadError, match="results of this key have 1901 bytes"):
        store.append(batch["id"], ".out", b"x" * 1900, "me")
    other = submit(store, 1, "other")
    store.append(other["id"], ".out", b"x" * 1900, "other")
    third = submit(store, 1, "third")
    with pytest.raises(OverloadError, match="results of this server have 3802 bytes and 1901 more came"):
        store.append(third["id"], ".out", b"x" * 1900, "third")


async def test_what_is_answered_stays_when_a_batch_cannot_go_on(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 3)
    inner, calls = scripted([(400, {"error": {}}), GOOD]), [0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls[0] += 1
        await inner(scope, receive, send)
        if calls[0] == 2:
            store.delete_file(batch["input_file_id"])

    await Worker(app, store, CONFIG, border())._run_batch(batch)
    ended = store.get("batch", batch["id"], "me")
    assert (ended["status"], ended["request_counts"]) == ("failed", {"completed": 1, "failed": 1})
    for field, name in (("error_file_id", "c0"), ("output_file_id", "c1")):
        assert json.loads(store.content(ended[field]))["custom_id"] == name
        assert store.get("file", ended[field], "me")["bytes"] == len(store.content(ended[field]))


async def test_a_disk_that_refuses_is_asked_again_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, puts, slept = Store(tmp_path, CONFIG), [0], list[float]()
    batch = submit(store, 1)
    put, sweep, real_sleep = store.put, store.sweep, asyncio.sleep

    def full_put(kind: str, document: dict[str, Any]) -> None:
        puts[0] += 1
        if puts[0] <= 10:
            raise OSError(28, "No space left on device")
        put(kind, document)

    def broken_sweep() -> None:
        monkeypatch.setattr(store, "sweep", sweep)
        raise OSError(30, "Read-only file system")

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real_sleep(0)

    monkeypatch.setattr(store, "put", full_put)
    monkeypatch.setattr(store, "sweep", broken_sweep)
    monkeypatch.setattr(worker_module, "PAUSE_S", 1.0)
    monkeypatch.setattr(worker_module.asyncio, "sleep", sleep)
    worker = Worker(scripted([GOOD]), store, CONFIG, border())
    worker.wake()
    for _ in range(300):
        await real_sleep(0.01)
        if store.get("batch", batch["id"], "me")["status"] == "failed":
            break
    ended = store.get("batch", batch["id"], "me")
    assert "No space left" in ended["errors"]["data"][0]["message"]
    assert slept == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]  # the look; then the end of the batch
    await worker.close()


async def test_a_batch_that_ends_as_the_server_does_loses_no_result(tmp_path: Path) -> None:
    """After each step of the end, from the disk alone, the next server comes to the same end."""
    for steps in range(3):
        store = Store(tmp_path / str(steps), CONFIG)
        batch = submit(store, 2)
        worker = Worker(scripted([(400, {"error": {}}), GOOD]), store, CONFIG, border())

        def stop(batch: dict[str, Any], steps: int = steps, store: Store = store) -> None:
            if steps:
                Store.keep_results(store, batch)
            if steps == 2:
                Store.drop_lines(store, batch["id"])
            raise asyncio.CancelledError

        store.keep_results = stop
        with pytest.raises(asyncio.CancelledError):
            await worker._run_batch(batch)
        again = Store(tmp_path / str(steps), CONFIG)
        found = again.get("batch", batch["id"], "me")
        assert found["status"] == "finalizing"
        await Worker(scripted([RuntimeError("no line runs")]), again, CONFIG, border())._run_batch(found)
        ended = again.get("batch", batch["id"], "me")
        assert (ended["status"], ended["request_counts"]) == ("completed", {"completed": 1, "failed": 1})
        for field, name in (("error_file_id", "c0"), ("output_file_id", "c1")):
            assert json.loads(again.content(ended[field]))["custom_id"] == name
        assert len(again.owned("file", "me")) == 3


def test_a_line_of_results_is_on_the_disk_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 1)
    store.append(batch["id"], ".out", b"one", "me")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.append(batch["id"], ".out", b"two", "me")
    store.append(batch["id"], ".out", b"three", "me")
    assert list(store.done_lines(batch["id"], ".out")) == [b"one\n", b"three\n"]


async def test_a_batch_whose_key_is_gone_does_not_run(tmp_path: Path, caplog: Any) -> None:
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 1, "left")
    store.append(batch["id"], ".out", b'{"custom_id": "old"}', "left")
    app = scripted([AssertionError("no line runs")])
    await Worker(app, store, CONFIG, border(tenant_of=lambda _: None))._run_batch(batch)
    ended = store.get("batch", batch["id"], "left")
    assert ended["status"] == "failed"
    assert "the key 'left'" in ended["errors"]["data"][0]["message"]
    assert "the key 'left'" in caplog.text
    assert store.content(ended["output_file_id"]) == b'{"custom_id": "old"}\n'
    keys = load_keys(AccessConfig(api_key=("secret",)))
    assert keys.tenant("left") is None
    assert keys.tenant("key-1") is not None
    assert load_keys(AccessConfig()).tenant("left") is not None


def test_lines_are_found_by_where_they_begin(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIG)
    texts = [
        json.dumps({"custom_id": f"ä{i}", "method": "POST", "url": "/v1", "body": {"n": i}}) for i in (0, 1)
    ]
    file = store.add_file(f"\n{texts[0]}\n \n\r\n{texts[1]}".encode(), "in", "me")
    path = store.content_path(file["id"])
    found = list(find_lines(path))
    assert [name for _, name in found] == ["ä0", "ä1"]
    assert [line_at(path, offset).body for offset, _ in found] == [{"n": 0}, {"n": 1}]
    worker = Worker(scripted([GOOD]), store, CONFIG, border())
    assert worker._todo(file["id"], {"ä0": True}) == [found[1][0]]


async def test_only_so_many_owners_have_lines_at_a_time(tmp_path: Path) -> None:
    config = BatchConfig(max_lines_running=1, max_files=100, key_share=1.0)
    store, running, go = Store(tmp_path, config), [0], asyncio.Event()
    names = [(submit(store, 1, f"o{i}")["id"], f"o{i}") for i in range(MOST_OWNERS + 3)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        running[0] += 1
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    worker = Worker(app, store, config, border())
    worker.wake()
    await until(lambda: running[0] >= MOST_OWNERS)
    worker.wake()
    await asyncio.sleep(0.3)
    assert running[0] == MOST_OWNERS
    go.set()
    await until(lambda: all(store.get("batch", n, o)["status"] == "completed" for n, o in names))
    await worker.close()


def test_results_become_files_without_being_read(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 1)
    store.append(batch["id"], ".out", b"one", "me")
    written = (tmp_path / "batches" / f"{batch['id']}.out").stat().st_ino
    batch |= store.name_results(batch["id"])
    store.keep_results(batch)
    assert store.content_path(batch["output_file_id"]).stat().st_ino == written


async def test_a_content_is_sent_in_parts(tmp_path: Path) -> None:
    config = EngineConfig(batch=BatchConfig(dir=str(tmp_path)))
    app, state = build_app(cast("AsyncLLM", FakeLLM(hello)), config)
    store, content = state.batch_worker.store, bytes(range(256)) * 1024
    file = store.add_file(content, "in", "")
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            parts.append(message["body"])

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client says nothing, and stays

    async def ask() -> None:
        path = f"/v1/files/{file['id']}/content"
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
        }
        scope |= {"query_string": b"", "root_path": "", "headers": [], "scheme": "http", "state": {}}
        scope |= {"asgi": {"version": "3.0"}, "server": None, "client": None}
        await app(scope, receive, send)

    await asyncio.wait_for(ask(), 10)
    assert b"".join(parts) == content
    assert max(map(len, parts)) <= 1 << 16
    store.content_path(file["id"]).unlink()
    parts.clear()
    await asyncio.wait_for(ask(), 10)
    assert b"has no content here" in parts[0]
